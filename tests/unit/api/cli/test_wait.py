"""Waiting: for a server, and for actors."""

from __future__ import annotations

from typing import Any

import pytest

from statevisor.api.cli import wait


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, none of them in earnest."""
    pauses: list[float] = []
    monkeypatch.setattr(wait.time, "sleep", pauses.append)
    return pauses


def test_a_server_is_waited_for(server: Any, cli: Any, slept: list[float]) -> None:
    server.refuse("GET", "/ready", 503, "model_loading")
    server.refuse("GET", "/ready", 503, "model_loading")
    server.answer("GET", "/ready", {"status": "ready"})

    ran = cli("wait")

    assert (ran.code, len(slept)) == (0, 2)
    assert ran.out == f"{server.url} is ready\n"


def test_actors_are_waited_for_one_after_another(
    server: Any, cli: Any, shapes: Any, slept: list[float]
) -> None:
    for status in ("running", "hibernating", "hibernated"):
        server.answer("GET", "/v1/actors/alice", shapes.actor(status=status))
    server.answer("GET", "/v1/actors/bob", shapes.actor("bob"))

    ran = cli("wait", "alice", "bob")

    assert (ran.code, len(slept)) == (0, 2)
    assert ran.out == "alice is hibernated\nbob is idle\n"


def test_who_is_missing_is_told_before_anybody_is_waited_for(
    server: Any, cli: Any, shapes: Any, slept: list[float]
) -> None:
    server.answer("GET", "/v1/actors/alice", shapes.actor(status="running"))
    server.refuse("GET", "/v1/actors/bob", 404, "actor_not_found")

    ran = cli("wait", "alice", "bob", "--timeout", "0s")

    assert (ran.code, slept) == (3, [])
    assert "'bob'" in ran.err
    server.answer("GET", "/v1/actors/carol", status=404, body={"code": "actor_not_found"})
    assert cli("wait", "bob", "carol", "--for", "deleted").code == 0


def test_one_status_can_be_asked_for(server: Any, cli: Any, shapes: Any, slept: Any) -> None:
    server.answer("GET", "/v1/actors/alice", shapes.actor(status="idle"))
    server.answer("GET", "/v1/actors/alice", shapes.actor(status="running"))

    assert cli("wait", "alice", "--for", "running").out == "alice is running\n"
    assert len(slept) == 1
    assert cli("wait", "alice", "--for", "asleep").code == 2


def test_who_is_gone_is_deleted(server: Any, cli: Any) -> None:
    server.refuse("GET", "/v1/actors/alice", 404, "actor_not_found")

    assert cli("wait", "alice").code == 3
    assert cli("wait", "alice", "--for", "deleted").code == 0


def test_who_is_quarantined_is_not_waited_for(server: Any, cli: Any, shapes: Any) -> None:
    server.answer("GET", "/v1/actors/alice", shapes.actor(status="quarantined"))

    assert cli("wait", "alice").code == 4
    assert cli("wait", "alice", "--for", "quarantined").code == 0


def test_a_wait_ends(server: Any, cli: Any, shapes: Any, slept: list[float]) -> None:
    server.answer("GET", "/v1/actors/alice", shapes.actor(status="running"))

    ran = cli("wait", "alice", "--timeout", "0s")

    assert (ran.code, slept) == (5, [])
    assert "alice is running" in ran.err
    assert "next: Wait longer" in ran.err
    assert cli("wait", "alice", "--timeout", "soon").code == 2
