"""The parts of an action: when they began, how long they took, and only while it is timed."""

from __future__ import annotations

from typing import Any

import pytest

from statevisor.api.bench import parts as subject
from statevisor.api.bench.parts import Parts


class Clock:
    """Time that passes when told to, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


class Machine:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def write(self, seconds: float) -> float:
        self._clock.now += seconds
        return seconds

    async def commit(self) -> str:
        self._clock.now += 0.25
        return "done"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(subject, "time", clock)
    return clock


async def test_a_part_that_is_done_twice_has_one_beginning_and_the_sum(clock: Clock) -> None:
    parts, machine = Parts(), Machine(clock)
    parts.watch(machine, write="disk", commit="row")

    async def act() -> None:
        clock.now += 1
        assert machine.write(0.5) == 0.5
        assert await machine.commit() == "done"
        machine.write(0.5)

    await parts.time("move", act)
    await machine.commit()  # belongs to no action
    assert parts.report() == {
        "move": {
            "whole": {"at": 0, "ms": 2250},
            "disk": {"at": 1000, "ms": 1000},
            "row": {"at": 1500, "ms": 250},
        }
    }


async def test_medians_are_of_the_runs_and_rare_parts_are_left_out(clock: Clock) -> None:
    parts, machine = Parts(), Machine(clock)
    parts.watch(machine, write="disk", commit="row")
    for seconds in (0.1, 0.2, 0.9):

        async def act(seconds: float = seconds) -> Any:
            machine.write(seconds)
            return await machine.commit() if seconds == 0.2 else None

        await parts.time("move", act)
    report = parts.report()["move"]
    assert report["disk"]["ms"] == 200
    assert "row" not in report


async def test_a_part_that_fails_is_timed_and_its_error_told(clock: Clock) -> None:
    class Broken(Machine):
        def write(self, seconds: float) -> float:
            super().write(seconds)
            raise OSError("gone")

    parts, machine = Parts(), Broken(clock)
    parts.watch(machine, write="disk")

    async def act() -> None:
        with pytest.raises(OSError, match="gone"):
            machine.write(0.5)

    await parts.time("move", act)
    assert parts.report()["move"]["disk"]["ms"] == 500
