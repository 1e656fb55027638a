"""Who shares a sync with whom."""

from __future__ import annotations

import asyncio
from threading import Event

import pytest

from statevisor.store.group_sync import GroupSync


class Syncs:
    """A sync that ends when told to."""

    def __init__(self):
        self.started = 0
        self.gates = []

    async def __call__(self, work):
        work()
        self.started += 1
        gate = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        await gate


async def never(work):
    raise AssertionError("no other thread was needed")


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_writers_that_come_during_a_sync_share_the_next():
    syncs = Syncs()
    group = GroupSync(lambda: None, syncs)
    first = asyncio.ensure_future(group.wait())
    await settle()
    later = [asyncio.ensure_future(group.wait()) for _ in range(5)]
    await settle()
    assert syncs.started == 1
    syncs.gates[0].set_result(None)
    await settle()
    assert first.done()
    assert not any(task.done() for task in later)  # the first sync began before they wrote
    assert syncs.started == 2
    syncs.gates[1].set_result(None)
    await asyncio.gather(*later)
    assert syncs.started == 2


async def test_there_is_no_timer_and_no_sync_for_nobody():
    syncs = Syncs()
    group = GroupSync(lambda: None, syncs)
    task = asyncio.ensure_future(group.wait())
    await settle()
    syncs.gates[0].set_result(None)
    await task
    await settle()
    assert syncs.started == 1


async def test_two_syncs_never_run_at_once():
    running, most = 0, 0

    async def sync(work):
        nonlocal running, most
        running += 1
        most = max(most, running)
        work()
        await asyncio.sleep(0)
        running -= 1

    group = GroupSync(lambda: None, sync)

    async def writer(k):
        for _ in range(k % 3):
            await asyncio.sleep(0)
        await group.wait()

    await asyncio.gather(*(writer(k) for k in range(30)))
    assert most == 1


async def test_a_failed_sync_fails_all_who_shared_it():
    async def sync(work):
        raise RuntimeError("gone")

    group = GroupSync(lambda: None, sync)
    results = await asyncio.gather(group.wait(), group.wait(), return_exceptions=True)
    assert [str(result) for result in results] == ["gone", "gone"]


async def test_a_cancelled_writer_waits_for_the_sync():
    syncs = Syncs()
    group = GroupSync(lambda: None, syncs)
    task, other = (asyncio.ensure_future(group.wait()) for _ in range(2))
    await settle()
    task.cancel()
    await settle()
    assert not task.done()
    syncs.gates[0].set_result(None)
    await other
    with pytest.raises(asyncio.CancelledError):
        await task


class Slow:
    """A sync on a thread that ends when told to."""

    def __init__(self):
        self.running, self.most, self.done = 0, 0, 0
        self.began, self.gate = Event(), Event()

    def __call__(self):
        self.running += 1
        self.most = max(self.most, self.running)
        self.began.set()
        assert self.gate.wait(20), "the test forgot its gate"
        self.running -= 1
        self.done += 1


async def test_a_writer_alone_syncs_on_its_own_thread():
    group = GroupSync(lambda: None, never)
    assert await asyncio.to_thread(group.lead)
    assert group.lead()  # and the next, once that has ended


async def test_who_comes_while_another_leads_waits_for_a_later_sync():
    slow = Slow()
    group = GroupSync(slow, asyncio.to_thread)
    leader = asyncio.ensure_future(asyncio.to_thread(group.lead))
    await asyncio.to_thread(slow.began.wait)
    assert not group.lead()  # its bytes may have come too late for the one that runs
    later = []
    for _ in range(3):
        later.append(asyncio.ensure_future(group.wait()))
        await settle()
    assert not any(one.done() for one in later)
    slow.gate.set()
    assert await leader
    await asyncio.gather(*later)
    assert slow.done == 2  # all three share the one that had not begun
    assert slow.most == 1


async def test_a_leader_whose_sync_fails_leaves_the_way_free():
    fails = [True]

    def sync():
        if fails.pop():
            raise RuntimeError("gone")

    group = GroupSync(sync, never)
    with pytest.raises(RuntimeError, match="gone"):
        group.lead()
    fails.append(False)
    assert group.lead()
