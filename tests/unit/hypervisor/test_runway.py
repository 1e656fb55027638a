"""Plans are begun in the one order in which they were given, and read beside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from statevisor.hypervisor.engine import Engine
from statevisor.hypervisor.plan import RowResult, StepPlan
from statevisor.hypervisor.runway import MOST_UNTOLD, Flight, Landing, Runway


@dataclass
class Device:
    """Steps that end when they are let go."""

    steps_ahead: int = 2
    begun: list[int] = field(default_factory=list)  #: offsets
    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    refused: int = -1  #: the offset that cannot be begun
    lost: int = -1  #: and that is lost
    busy: bool = True  #: whether what was begun seems not to have ended
    times: list[int] = field(default_factory=list)  #: of every plan
    beginning: threading.Lock = field(default_factory=threading.Lock)
    unread: int = 0
    most: int = 0  #: plans that were begun and not read

    def submit(self, plan: StepPlan) -> StepPlan:
        assert self.beginning.acquire(blocking=False), "two plans are begun at once"
        if plan.offset <= self.refused < plan.offset + plan.times:
            self.beginning.release()
            raise ValueError(plan.offset)
        self.begun += range(plan.offset, plan.offset + plan.times)
        self.times.append(plan.times)
        self.unread += 1
        self.most = max(self.most, self.unread)
        self.beginning.release()
        return plan

    def waits(self, ticket: StepPlan) -> bool:
        return self.busy

    def collect(self, ticket: StepPlan) -> Any:
        steps = range(ticket.offset, ticket.offset + ticket.times)
        for _ in steps:
            assert self.ended.acquire(timeout=20)
        self.unread -= 1
        if self.lost in steps:
            raise RuntimeError(self.lost)
        return tuple((RowResult(token=step),) for step in steps)


class Time:
    def monotonic(self) -> float:
        return 0.0


class Airfield:
    """A runway and what came back on it."""

    def __init__(self) -> None:
        self.device = Device()
        self.engine = Engine("t")
        self.woken = asyncio.Event()
        device: Any = self.device
        clock: Any = Time()
        self.runway: Runway[Flight] = Runway(device, self.engine, clock, self.woken.set)

    async def read(self, steps: int) -> list[Any]:
        """Let steps end and take them back as they come."""
        self.device.ended.release(steps)
        found: list[Any] = []
        while len(found) < steps:
            self.woken.clear()
            found += told(self.runway.take())
            if len(found) < steps:
                await asyncio.wait_for(self.woken.wait(), 20)
        return found

    async def unwatched(self) -> None:
        """The event loop does not look for some time."""
        for _ in range(20):
            await asyncio.sleep(0.005)


def told(landed: list[Landing[Flight]]) -> list[Any]:
    """Which step of which offset came back, or what it failed with, in order."""
    found: list[Any] = []
    for landing in landed:
        found += [time[0].token for time in landing.results]
        if landing.error is not None:
            found += [landing.error] * landing.times
    return found


@pytest.fixture
async def field_() -> AsyncIterator[Airfield]:
    made = Airfield()
    yield made
    made.runway.hold()
    made.device.ended.release(1000)
    await made.engine.close()


def flight(offset: int = 0, most: int = 1) -> Flight:
    return Flight(StepPlan(rows=(), offset=offset), most=most)


async def test_a_plan_that_goes_on_is_given_again_without_the_event_loop(field_: Airfield) -> None:
    field_.runway.give(flight(most=1000))
    field_.device.ended.release(1000)
    await field_.unwatched()
    assert field_.device.begun == list(range(MOST_UNTOLD))
    assert told(field_.runway.take()) == list(range(MOST_UNTOLD))
    await field_.unwatched()
    assert field_.device.begun == list(range(2 * MOST_UNTOLD))


async def test_few_are_out_at_once(field_: Airfield) -> None:
    field_.runway.give(flight(most=1000))
    await field_.unwatched()
    assert field_.device.begun == [0, 1]
    await field_.read(100)
    assert field_.device.most == 2


async def test_what_is_held_stands_still(field_: Airfield) -> None:
    going = flight(most=1000)
    field_.runway.give(going)
    await field_.read(5)
    field_.runway.hold()
    given = going.given
    field_.runway.give(flight(offset=5000))
    landed = await field_.read(given - 5 + 1)
    await field_.unwatched()
    assert going.given == given
    assert field_.device.begun == [*range(given), 5000]
    assert landed[-1] == 5000
    assert not field_.runway.plans


async def test_a_plan_is_given_no_more_than_it_may_be(field_: Airfield) -> None:
    field_.device.busy = False
    field_.runway.give(flight(most=23))
    await field_.read(23)
    await field_.unwatched()
    assert field_.device.begun == list(range(23))
    assert max(field_.device.times) > 1


@pytest.mark.parametrize("kind", ["refused", "lost"])
async def test_a_plan_that_fails_is_told_in_its_turn_and_goes_no_further(
    field_: Airfield, kind: str
) -> None:
    setattr(field_.device, kind, 4)
    going = flight(most=1000)
    field_.runway.give(going)
    field_.device.ended.release(1000)
    landed: list[Any] = []
    while len(landed) < going.given:
        await field_.unwatched()
        landed += told(field_.runway.take())
    assert going.given < 12
    assert landed[:4] == [0, 1, 2, 3]
    assert isinstance(landed[4], ValueError if kind == "refused" else RuntimeError)
    assert landed[5:] == list(range(5, going.given))
    assert not field_.runway.going(going)


async def test_what_is_handed_to_the_engine_waits_for_no_result(field_: Airfield) -> None:
    field_.runway.give(flight(most=1000))
    await asyncio.wait_for(field_.engine.run(field_.device.begun.append, -1), 20)
    assert field_.device.begun == [0, 1, -1]


async def test_plans_of_two_threads_begin_one_after_the_other(field_: Airfield) -> None:
    """One goes on by itself while others are given."""
    wanted: list[int] = []
    for turn in range(40):
        going = flight(offset=1000 * turn, most=1000)
        field_.runway.give(going)
        await field_.read(7)
        field_.runway.hold()
        await field_.read(going.given - 7)
        wanted += range(1000 * turn, 1000 * turn + going.given)
    assert field_.device.begun == wanted


async def test_a_plan_that_waits_for_the_engine_goes_on_behind_its_beginning(
    field_: Airfield,
) -> None:
    """What was given before it is read meanwhile, by the thread that begins what goes on."""
    field_.runway.give(flight(most=1000))
    await field_.read(3)
    busy = threading.Event()
    engaged = asyncio.create_task(field_.engine.run(busy.wait))
    await field_.unwatched()
    field_.runway.hold()
    field_.runway.give(flight(offset=5000, most=1000))
    field_.device.ended.release(2)
    await field_.unwatched()
    before = len(field_.device.begun)
    assert max(field_.device.begun) < 5000
    busy.set()
    await engaged
    await field_.unwatched()
    assert field_.device.begun[before:] == [5000, 5001]
