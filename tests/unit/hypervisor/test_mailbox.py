"""One at a time, in order, and only so many."""

from __future__ import annotations

import asyncio

import pytest

from statevisor.hypervisor.errors import ActorBusy, ActorNotFound
from statevisor.hypervisor.mailbox import Mailbox


async def test_operations_run_in_order_of_arrival() -> None:
    box, order = Mailbox(10), []

    async def work(name: int) -> None:
        async with box.turn():
            order.append(name)
            await asyncio.sleep(0)
            order.append(name)

    await asyncio.gather(*(work(i) for i in range(5)))
    assert order == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert not box.held


async def test_a_full_mailbox_refuses_at_once() -> None:
    box = Mailbox(1)
    await box.enter()
    waiting = asyncio.create_task(box.enter())
    await asyncio.sleep(0)
    with pytest.raises(ActorBusy):
        await box.enter()
    box.leave()
    await waiting
    box.leave()
    assert not box.held


async def test_a_cancelled_waiter_neither_holds_nor_loses_the_turn() -> None:
    box = Mailbox(5)
    await box.enter()
    gone = asyncio.create_task(box.enter())
    next_one = asyncio.create_task(box.enter())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    box.leave()
    await asyncio.wait_for(next_one, 1)
    box.leave()
    assert not box.held


async def test_a_waiter_cancelled_after_it_was_let_in_hands_the_turn_on() -> None:
    box = Mailbox(5)
    await box.enter()
    gone = asyncio.create_task(box.enter())
    next_one = asyncio.create_task(box.enter())
    await asyncio.sleep(0)
    box.leave()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await asyncio.wait_for(next_one, 1)
    box.leave()
    assert not box.held


async def test_who_is_cancelled_and_passed_over_at_once_only_hears_of_it() -> None:
    box = Mailbox(2)
    await box.enter()
    first, second = asyncio.create_task(box.enter()), asyncio.create_task(box.enter())
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    box.leave()  # before either has run again
    for task in (first, second):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (box.held, box.depth) == (False, 0)
    assert box.try_enter()


async def test_nobody_is_let_in_behind_the_end() -> None:
    box = Mailbox(3)
    await box.enter()
    waiting, gone = asyncio.create_task(box.enter()), asyncio.create_task(box.enter())
    await asyncio.sleep(0)
    box.end("it is gone")
    gone.cancel()  # told at the same moment
    box.leave()
    with pytest.raises(ActorNotFound, match="it is gone"):
        await waiting
    await asyncio.gather(gone, return_exceptions=True)
    with pytest.raises(ActorNotFound, match="it is gone"):
        await box.enter()
    assert not box.try_enter()
    assert (box.held, box.depth) == (False, 0)
