"""Snapshot, fork, mutate, rollback."""

from __future__ import annotations

from typing import Any

import pytest

from statevisor.api.cli.branches import parameter


def test_snapshot_can_wait_for_its_image(server: Any, cli: Any, shapes: Any) -> None:
    server.answer("POST", "/v1/actors/alice/snapshot", shapes.version(), status=201)

    assert cli("snapshot", "alice", "--tag", "good", "--wait").code == 0
    assert server.asked[0].query == {"wait": "true"}
    assert server.asked[0].body == {"tag": "good"}


@pytest.mark.parametrize(
    ("words", "body"),
    [
        ((), {}),
        (("-n", "8"), {"count": 8}),
        (("--at", "1200"), {"at": 1200}),
        (("--at", "alice@3"), {"at": "alice@3"}),
        (("--name", "a", "--name", "b"), {"count": 2, "names": ["a", "b"]}),
        (("--seed", "1", "--rng", "inherit"), {"count": 1, "seeds": [1], "rng": "inherit"}),
    ],
)
def test_fork(server: Any, cli: Any, shapes: Any, words: tuple[str, ...], body: object) -> None:
    server.answer("POST", "/v1/actors/alice/fork", shapes.listing(shapes.actor("bob")), status=201)

    ran = cli("fork", "alice", *words)

    assert ran.code == 0
    assert "bob" in ran.out
    assert server.asked[0].body == body


def test_mutate_sends_parameters_and_selection(server: Any, cli: Any, shapes: Any) -> None:
    made = shapes.version("alice@3", op="mutate", rule="decay")
    server.answer("POST", "/v1/actors/alice/mutate", made, status=201)

    ran = cli(
        "mutate", "alice", "decay", "alpha=0.5",
        "--family", "wkv", "--layer", "0", "--layer", "2", "--head", "1", "--reason", "try",
    )  # fmt: skip

    assert ran.code == 0
    assert "decay" in ran.out
    assert server.asked[0].body == {
        "rule": "decay",
        "params": {"alpha": 0.5},
        "select": {"families": ["wkv"], "layers": [0, 2], "heads": [1]},
        "reason": "try",
    }


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("alpha", "0.9", 0.9),
        ("seed", "7", 7),
        ("from", "bob@3", "bob@3"),
        ("others", "a@1", ["a@1"]),
        ("others", "a@1,b@2", ["a@1", "b@2"]),
        ("weights", "0.5", [0.5]),
        ("weights", "[0.5, 1]", [0.5, 1]),
    ],
)
def test_parameters_are_read_as_numbers_words_and_lists(key: str, text: str, value: object) -> None:
    assert parameter(key, text) == value


def test_rollback_takes_a_position_or_a_handle(server: Any, cli: Any, shapes: Any) -> None:
    server.answer("POST", "/v1/actors/alice/rollback", shapes.actor())

    cli("rollback", "alice", "12")
    cli("rollback", "alice", "alice@1", "--rng", "inherit")

    assert [asked.body for asked in server.asked] == [
        {"to": 12},
        {"to": "alice@1", "rng": "inherit"},
    ]


COST = {
    "object": "cost",
    "dry_run": True,
    "actor": "alice",
    "position": 1200,
    "source": "image",
    "source_position": 1024,
    "image": "blake3:ab",
    "tokens": 176,
    "estimated_ms": 14.2,
    "bound": "dense",
    "bound_tokens": 512,
}


def test_a_dry_run_tells_what_going_back_costs(server: Any, cli: Any) -> None:
    server.answer("POST", "/v1/actors/alice/rollback", COST)
    server.answer("POST", "/v1/actors/alice/fork", {**COST, "estimated_ms": None})

    back = cli("rollback", "alice", "1200", "--dry-run")
    away = cli("fork", "alice", "--at", "1200", "--dry-run")

    assert [asked.body for asked in server.asked] == [
        {"to": 1200, "dry_run": True},
        {"at": 1200, "dry_run": True},
    ]
    assert back.out.splitlines() == [
        "alice at position 1200: the nearest image is at 1024",
        "tokens to replay: 176 (about 14 ms)",
        "never more than: 512 (a collection keeps every checkpoint near here)",
    ]
    assert "no replay was measured yet" in away.out
