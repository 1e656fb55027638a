from __future__ import annotations

import asyncio
import threading

import pytest

from statevisor.hypervisor.hands import Hands


@pytest.fixture
async def hand():
    made = Hands(1, "test")
    yield made
    await made.close()


async def test_work_is_done_in_order_on_a_thread_of_its_own(hand):
    seen: list[object] = []
    works = [hand.run(lambda n=n: seen.append((n, threading.current_thread()))) for n in range(5)]
    await asyncio.gather(*works)

    assert [number for number, _ in seen] == list(range(5))
    assert {thread for _, thread in seen} != {threading.current_thread()}
    assert len({thread for _, thread in seen}) == 1


async def test_what_work_raises_is_raised_to_whoever_waits(hand):
    with pytest.raises(KeyError):
        await hand.run(lambda: {}["nothing"])
    assert await hand.run(lambda: 7) == 7


async def test_the_loop_is_told_on_its_own_thread(hand):
    told = asyncio.get_running_loop().create_future()
    hand.give(
        lambda: 7, lambda result, error: told.set_result((result, error, threading.get_ident()))
    )
    assert await told == (7, None, threading.get_ident())


async def test_a_caller_that_is_cancelled_hinders_nobody(hand):
    gate = threading.Event()
    waiting = asyncio.create_task(hand.run(gate.wait))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    assert await hand.run(lambda: 7) == 7


async def test_close_waits_for_what_was_given(hand):
    gate, ended = threading.Event(), []
    slow = Hands(2, "slow")
    waiting = asyncio.create_task(slow.run(lambda: (gate.wait(10), ended.append(1))))
    await asyncio.sleep(0)
    closing = asyncio.create_task(slow.close())
    await hand.run(lambda: None)
    assert not closing.done()
    gate.set()
    await closing
    await waiting
    assert ended == [1]


async def test_threads_that_were_never_used_need_no_waiting():
    await Hands(3, "idle").close()
