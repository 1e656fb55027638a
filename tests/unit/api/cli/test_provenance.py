"""Search, heads, recipes."""

from __future__ import annotations

import json
from typing import Any


def test_search_asks_for_what_was_given_and_no_more(server: Any, cli: Any, shapes: Any) -> None:
    many = [shapes.version(f"a@{n}") for n in range(3)]
    server.answer("GET", "/v1/versions", shapes.listing(*many, more=True, key="handle"))

    ran = cli("search", "--label", "team=a", "--since", "2026-01-01T00:00Z", "--limit", "2")

    assert [line.split()[0] for line in ran.out.splitlines()] == ["VERSION", "a@0", "a@1"]
    assert len(server.asked) == 1
    assert server.asked[0].query == {
        "label": "team=a",
        "since": "2026-01-01T00:00Z",
        "limit": "2",
    }


def test_the_head_at_a_time(server: Any, cli: Any, shapes: Any) -> None:
    server.answer("GET", "/v1/actors/alice/head", shapes.version("alice@1"))

    assert "alice@1" in cli("head", "alice", "--at", "2026-01-01T00:00Z").out
    assert server.asked[0].query == {"at": "2026-01-01T00:00Z"}


RECIPE = {
    "object": "recipe",
    "model": "demo",
    "start": None,
    "position": 0,
    "steps": [
        {"kind": "prompt", "position": 0, "token_ids": [1, 2, 3]},
        {
            "kind": "rule",
            "position": 3,
            "version": "a@1",
            "rule": "decay",
            "params": {"alpha": 0.5},
        },
    ],
}


def test_reproduce_tells_the_steps_and_checks_them_if_asked(
    server: Any, cli: Any, shapes: Any
) -> None:
    recipe = {**RECIPE, "version": shapes.version("a@1", build="cpu")}
    server.answer("GET", "/v1/versions/a@1/recipe", recipe)
    proof = {"ok": False, "checked": 3, "digest": "blake3:a", "expected": "blake3:b"}
    server.answer("POST", "/v1/versions/a@1/verify", proof)

    told = cli("reproduce", "a@1")
    checked = cli("reproduce", "a@1", "--whole", "--check")

    assert told.code == 0
    assert "the empty state" in told.out
    assert "3 tokens, prompt" in told.out
    assert "decay alpha=0.5  -> a@1" in told.out
    assert checked.code == 1
    assert [one.query for one in server.asked] == [{}, {"whole": "true"}, {}]
    assert json.loads(cli("reproduce", "a@1", "-o", "json").out) == recipe
