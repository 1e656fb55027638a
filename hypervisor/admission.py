"""Waiting for a slot: whoever asks first is served first, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from statevisor.hypervisor.errors import NoFreeSlot
from statevisor.hypervisor.slots import SlotTable

#: How long a waiter sleeps before it looks again for somebody to move.
_LOOK_AGAIN_S = 0.05


class Admission:
    """The slots of one bank and the queue before them."""

    def __init__(self, capacity: int, wait_s: float) -> None:
        self.slots = SlotTable(capacity)
        self._wait_s = wait_s
        self._queue = asyncio.Lock()
        self._freed = asyncio.Event()
        self.waiting = 0  #: who has not got a slot yet

    async def take(self, owner: str, make_room: Callable[[], Awaitable[bool]]) -> int:
        """A slot; while none is free, `make_room` is asked to free one and says if it did.

        Raises: NoFreeSlot after `wait_s`.
        """
        deadline = self.deadline()
        full = NoFreeSlot(f"all {self.slots.capacity} slots were busy for {self._wait_s:g} s")
        self.waiting += 1
        try:
            return await self._take(owner, make_room, deadline, full)
        finally:
            self.waiting -= 1

    async def _take(
        self,
        owner: str,
        make_room: Callable[[], Awaitable[bool]],
        deadline: float,
        full: NoFreeSlot,
    ) -> int:
        try:
            async with asyncio.timeout_at(deadline):
                await self._queue.acquire()
        except TimeoutError:
            raise full from None
        try:
            while not self.slots.free:
                if not await make_room():
                    await self.something_freed(deadline, full)
            return self.slots.take(owner)
        finally:
            self._queue.release()

    def give(self, slot: int, owner: str) -> None:
        """Free a slot."""
        self.slots.give(slot, owner)
        self.wake()

    def wake(self) -> None:
        """Something became free or idle: whoever waits may look again."""
        self._freed.set()

    def deadline(self) -> float:
        """Until when whoever begins to wait now may wait, in the event loop's time."""
        return asyncio.get_running_loop().time() + self._wait_s

    async def something_freed(self, deadline: float, late: NoFreeSlot) -> None:
        """Wait until something may have become free. Raises: `late`, at the deadline."""
        now = asyncio.get_running_loop().time()
        if now >= deadline:
            raise late
        self._freed.clear()
        try:
            # an actor whose mailbox is left frees nothing, but may be moved from now on
            async with asyncio.timeout_at(min(deadline, now + _LOOK_AGAIN_S)):
                await self._freed.wait()
        except TimeoutError:
            return
