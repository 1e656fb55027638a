"""Completion in a shell: commands, and names of actors from the running server."""

from __future__ import annotations

from typing import Any

import pytest

from statevisor.api.cli.main import main


@pytest.fixture
def complete(
    server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """What bash would offer for a line; its last word is being typed."""
    monkeypatch.setenv("STATEVISOR_URL", server.url)

    def offered(line: str) -> list[str]:
        monkeypatch.setenv("_STATEVISOR_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        main()
        return capsys.readouterr().out.split()

    return offered


def test_commands_are_completed(complete: Any) -> None:
    assert complete("statevisor ve") == ["versions", "verify"]


def test_actors_are_completed_from_the_server(server: Any, complete: Any, shapes: Any) -> None:
    page = shapes.listing(*(shapes.actor(name) for name in ("alice", "alan", "bob")))
    server.answer("GET", "/v1/actors", page)

    assert complete("statevisor info al") == ["alice", "alan"]


def test_without_a_server_nothing_is_offered(server: Any, complete: Any) -> None:
    server.refuse("GET", "/v1/actors", 503, "draining")

    assert complete("statevisor info al") == []
