"""Who makes room for whom: slots and frames are freed ahead of need, or when somebody waits.

Whoever waits for a slot gets one as soon as a row is copied; what is still to be written is written
beside. Frames are spilled in the background once they are nearly all used, so that the next one is
free when it is asked for. Pinned actors and those at work are left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from math import ceil
from typing import Final

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.admission import Admission
from statevisor.hypervisor.errors import ActorQuarantined, NoFreeSlot, StatevisorError
from statevisor.hypervisor.image_ports import HostFrames
from statevisor.hypervisor.lifecycle import Power
from statevisor.hypervisor.ports import Meter
from statevisor.hypervisor.states import States
from statevisor.hypervisor.vocab import Tier

#: Frames that are written at once: they share syncs, and leave the disk to others in between.
AT_ONCE: Final = 4


class Evictions:
    """Moves one guest's actors down for the sake of others."""

    def __init__(
        self,
        *,
        frames: HostFrames,
        states: States,
        admission: Admission,
        actors: Mapping[str, Actor],
        movable: Callable[[Tier], Iterator[str]],
        hibernate: Callable[[Actor, Tier], Awaitable[None]],
        high: float,
        low: float,
        meter: Meter,
    ) -> None:
        """`actors` are those with a slot or a frame, `movable` who of a tier may leave, in turn;
        `high` and `low` are shares of the frames."""
        self._frames = frames
        self._states = states
        self._admission = admission
        self._actors = actors
        self._movable = movable
        self._hibernate = hibernate
        self._meter = meter
        # rounded up: a tier too small for a share of a frame is left to fill up
        self._high = ceil(round(frames.capacity * high, 6))
        self._low = min(self._high, ceil(round(frames.capacity * low, 6)))
        self._wanted = asyncio.Event()
        self._leaving = set[asyncio.Task[bool]]()
        self._slotless: dict[str, asyncio.Future[None]] = {}  #: done once their slot is free

    # -- slots -----------------------------------------------------------------------------------
    async def make_room(self) -> bool:
        """Move the least recently used actor out of its slot; whether a slot is free now."""
        tier = Tier.HOST if self._frames.used < self._frames.capacity else Tier.NVME
        for key in self._movable(Tier.GPU):
            victim = self._actors.get(key)
            if victim is None or victim.power is not Power.IDLE:
                continue
            if tier is Tier.NVME and not self._can_keep(victim):
                continue
            if victim.mailbox.try_enter() and await self._send(victim, tier):
                return True
        return False

    def slot_freed(self, actor: Actor) -> None:
        """An actor has left its slot."""
        slotless = self._slotless.pop(actor.id, None)
        if slotless is not None and not slotless.done():
            slotless.set_result(None)

    async def _send(self, actor: Actor, tier: Tier) -> bool:
        """Let an actor leave, and wait until its slot is free, or until it turns out to stay."""
        slotless = self._slotless[actor.id] = asyncio.get_running_loop().create_future()
        task = self._begin(actor, tier)
        await asyncio.wait({task, slotless}, return_when=asyncio.FIRST_COMPLETED)
        return slotless.done()

    def _begin(self, actor: Actor, tier: Tier) -> asyncio.Task[bool]:
        task = asyncio.create_task(self._leave(actor, tier))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    async def _leave(self, actor: Actor, tier: Tier) -> bool:
        """Move an actor whose mailbox was entered for that; whether it has moved."""
        try:
            await self._hibernate(actor, tier)
        except ActorQuarantined:
            return True  # found not finite when it was caught up: its own matter, and it is out
        except StatevisorError:
            # it stays, or the journal decides; whoever touches it learns the reason
            self._meter.count("idle_moves_failed_total")
            return False
        else:
            return True
        finally:
            self._slotless.pop(actor.id, None)
            actor.mailbox.leave()
            self._admission.wake()

    # -- frames ----------------------------------------------------------------------------------
    async def frame_room(self, actor: Actor) -> None:
        """Return when a frame is free; the oldest moves on to nvme if none is.

        Raises: NoFreeSlot at the deadline, or if there are no frames at all.
        """
        if not self._frames.capacity:
            raise NoFreeSlot("there is no host tier", hint="Serve with a larger --host-bytes.")
        full = NoFreeSlot("the host tier is full and every actor in it is busy, pinned or unsaved")
        deadline = self._admission.deadline()
        while self._frames.used >= self._frames.capacity:
            if not await self._spill_one(besides=actor):
                await self._admission.something_freed(deadline, full)

    def frame_taken(self) -> None:
        """One more frame is used: begin to spill if few are left."""
        if self._frames.used > self._high:
            self._wanted.set()

    async def run(self) -> None:
        """Spill whenever it is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self.spill()

    async def spill(self) -> int:
        """Move actors from frames to nvme down to the low mark; returns how many moved."""
        moved, going = 0, set[asyncio.Task[bool]]()
        for key in self._movable(Tier.HOST):
            if self._frames.used - len(going) <= self._low:
                break
            victim = self._actors.get(key)
            if victim is not None and self._can_keep(victim) and victim.mailbox.try_enter():
                going.add(self._begin(victim, Tier.NVME))
            if len(going) >= AT_ONCE:
                done, going = await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
                moved += sum(task.result() for task in done)
        return moved + sum(await asyncio.gather(*going))

    async def _spill_one(self, *, besides: Actor) -> bool:
        for key in self._movable(Tier.HOST):
            victim = self._actors.get(key)
            if victim is None or victim is besides or not self._can_keep(victim):
                continue
            if victim.mailbox.try_enter():
                task = self._begin(victim, Tier.NVME)
                await asyncio.wait({task})  # not cancelled with whoever waits
                if task.result():
                    return True
        return False

    def _can_keep(self, actor: Actor) -> bool:
        """Whether its state has an image, or room for one."""
        return actor.imaged == actor.record.position or self._states.fit

    async def stop(self) -> None:
        """Give up what is under way; the journal has it all."""
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
