"""The bench of the tiers measures real moves, and its crowd shows a leak."""

from __future__ import annotations

from pathlib import Path

from statevisor.api.bench import tiers
from statevisor.api.bench.crowd import crowd
from statevisor.api.bench.wide_guest import WideGuest
from statevisor.hypervisor.plan import Row, StepPlan

KIB, MIB = 1 << 10, 1 << 20


async def test_every_move_is_timed_beside_its_floor(tmp_path: Path) -> None:
    report = await tiers.moves(tmp_path, row_bytes=512 * KIB, rounds=3)
    for name in tiers.FLOORS:
        ratio = report[name]["ratio"]
        assert ratio["of_pairs"]["n"] == 3
        assert ratio["of_pairs"]["p50"] > 0
    for name in ("hibernate_host", "evict_clean", "resume_host"):
        assert report[name]["ms"]["n"] == 3
    for name in tiers.BY_SMALL_PAGES:
        assert report[name]["ratio_small_pages"]["of_p50"] > 0
    down, up = report["parts"]["hibernate_nvme"], report["parts"]["resume_nvme"]
    assert next(iter(down)) == next(iter(up)) == "whole"
    assert {"copy", "put", "disk_write", "disk_sync", "commit"} < down.keys()
    assert {"get", "disk_read", "copy"} < up.keys()
    assert down["put"]["at"] < down["disk_write"]["at"] < down["disk_sync"]["at"]
    assert down["disk_sync"]["at"] < down["commit"]["at"]


async def test_a_crowd_tells_of_memory_after_every_round(tmp_path: Path) -> None:
    report = await crowd(tmp_path, actors=60, row_bytes=64 * KIB, host_bytes=MIB, rounds=3, seed=1)
    assert [line["actors"] for line in report["rounds"]] == [20, 40, 60]
    assert report["done"]["created"] == 60
    assert all(line["host_mib"] <= 1 for line in report["rounds"])
    assert report["rounds"][-1]["images_mib"] > 0


def test_a_wide_state_moves_whole_and_changes_with_every_token() -> None:
    guest, row, other = WideGuest(64 * KIB, slots=2), bytearray(64 * KIB), bytearray(64 * KIB)
    guest.clear(1)
    guest.save(1, memoryview(row))
    guest.step(StepPlan(rows=(Row(slot=1, tokens=(7,)),)))
    guest.save(1, memoryview(other))
    assert row != other
    assert row[-8:] != other[-8:]
    guest.load(2, memoryview(row))
    guest.step(StepPlan(rows=(Row(slot=2, tokens=(7,)),)))
    guest.save(2, memoryview(row))
    assert row == other
