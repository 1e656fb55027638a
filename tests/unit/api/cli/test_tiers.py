"""Tiers, hibernation, eviction."""

from __future__ import annotations

from typing import Any

TIERS = [
    {
        "tier": "gpu",
        "slots": {"capacity": 8, "used": 3},
        "capacity_bytes": 8 << 20,
        "used_bytes": 3 << 20,
        "actors": 3,
    },
    {"tier": "nvme", "slots": None, "capacity_bytes": 5 << 30, "used_bytes": 512, "actors": 4},
]


def test_tiers_are_a_table(server: Any, cli: Any) -> None:
    server.answer("GET", "/v1/tiers", {"object": "list", "data": TIERS})

    lines = cli("tiers").out.splitlines()

    assert lines[1].split() == ["gpu", "3", "3/8", "3.0", "MiB", "8.0", "MiB"]
    assert lines[2].split() == ["nvme", "4", "-", "512", "B", "5.0", "GiB"]


def test_hibernate_and_resume(server: Any, cli: Any, shapes: Any) -> None:
    asleep = shapes.actor(status="hibernated", tier="host")
    server.answer("POST", "/v1/actors/alice/hibernate", asleep)
    server.answer("POST", "/v1/actors/alice/resume", shapes.actor())

    assert "hibernated" in cli("hibernate", "alice", "--tier", "host").out
    assert "idle" in cli("resume", "alice").out
    assert [asked.body for asked in server.asked] == [{"tier": "host"}, {}]


def test_there_is_no_hibernating_to_the_top(server: Any, cli: Any) -> None:
    assert cli("hibernate", "alice", "--tier", "gpu").code == 2


def test_evict_turns_words_into_numbers(server: Any, cli: Any) -> None:
    answer = {"moved": ["alice"], "skipped": ["bob"], "bytes": 2048, "dry_run": True}
    server.answer("POST", "/v1/tiers/evict", answer)

    first = cli("evict", "--from", "gpu", "--to", "nvme", "--older-than", "1.5h", "--dry-run")
    cli("evict", "--from", "host", "--to", "nvme", "--bytes", "2GiB")

    assert first.out.splitlines() == [
        "would move 1 actors, 2.0 KiB",
        "alice",
        "bob (running or pinned: left alone)",
    ]
    assert server.asked[0].body == {
        "from": "gpu",
        "to": "nvme",
        "older_than_s": 5400.0,
        "dry_run": True,
    }
    assert server.asked[1].body == {"from": "host", "to": "nvme", "bytes": 2 << 30}
