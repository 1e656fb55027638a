"""Work that goes on when its caller has gone."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from statevisor.hypervisor.errors import Conflict
from statevisor.hypervisor.tasks import Tasks
from statevisor.hypervisor.turnstile import FEW


@pytest.fixture
async def log() -> list[dict[str, Any]]:
    """What the event loop was told of."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    return told


async def left_alone(tasks: Tasks, error: Exception) -> None:
    """Work whose caller goes away before it fails."""
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()
        raise error

    caller = asyncio.create_task(tasks.whole(work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    go.set()
    await tasks.wait()
    await asyncio.sleep(0)
    del caller
    gc.collect()


async def test_a_refusal_that_nobody_waits_for_is_no_news(log: list[dict[str, Any]]) -> None:
    await left_alone(Tasks(), Conflict("it has moved on"))

    assert log == []


async def test_a_fault_is_told_once(log: list[dict[str, Any]]) -> None:
    fault = RuntimeError("a fault")

    await left_alone(Tasks(), fault)

    assert [context["exception"] for context in log] == [fault]
    assert "caller had gone" in log[0]["message"]


async def test_what_begins_while_a_visor_closes_ends_with_it(world: Any) -> None:
    begun: list[asyncio.Task[bool]] = []

    async def last_step() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            begun.append(world.visor._tasks.spawn(asyncio.Event().wait()))

    world.visor._background += (asyncio.create_task(last_step()),)
    await asyncio.sleep(0)
    await world.crash()
    assert [task.cancelled() for task in begun] == [True]


async def test_a_caller_that_waits_hears_of_it(log: list[dict[str, Any]]) -> None:
    async def work() -> None:
        raise Conflict("no")

    with pytest.raises(Conflict):
        await Tasks().whole(work())
    gc.collect()
    assert log == []


async def test_much_work_at_once_is_begun_a_few_at_a_time(log: list[dict[str, Any]]) -> None:
    tasks, begun, steps = Tasks(), list[int](), list[int]()

    async def work(number: int) -> None:
        begun.append(number)

    async def other() -> None:
        while len(begun) < 40:
            steps.append(len(begun))
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    await asyncio.gather(*(tasks.whole(work(number)) for number in range(40)))
    await beside
    assert begun == list(range(40))
    assert len(steps) >= 40 / FEW
    assert log == []


async def test_work_that_is_cancelled_before_it_begins_is_not_begun() -> None:
    tasks, begun = Tasks(), list[int]()

    async def work(number: int) -> None:
        begun.append(number)

    for number in range(20):
        tasks.spawn(work(number))
    await asyncio.sleep(0)
    await tasks.cancel()
    gc.collect()  # a coroutine that was never awaited would be told
    assert begun == list(range(FEW))
