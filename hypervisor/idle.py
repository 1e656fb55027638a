"""Actors with a ttl are moved to nvme once they have been idle for that long."""

from __future__ import annotations

import asyncio

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.errors import StatevisorError
from statevisor.hypervisor.ports import Clock, Meter
from statevisor.hypervisor.roster import Roster
from statevisor.hypervisor.vocab import Tier


class IdleTimer:
    """Looks through the resident actors once in a while."""

    def __init__(self, roster: Roster, clock: Clock, meter: Meter, every_s: float = 1.0) -> None:
        self._roster = roster
        self._clock = clock
        self._meter = meter
        self._every_s = every_s

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.sweep()

    async def sweep(self) -> int:
        """Hibernate whoever is due; returns how many moved."""
        moved = 0
        for actor in [actor for actor in self._roster.actors.values() if self._due(actor)]:
            if not actor.mailbox.try_enter():
                continue
            try:
                await self._roster.residency(actor).hibernate(actor, Tier.NVME)
                moved += 1
            except StatevisorError:
                # it stays where it is and is tried again; whoever touches it learns the reason
                self._meter.count("idle_moves_failed_total")
            finally:
                actor.mailbox.leave()
        return moved

    def _due(self, actor: Actor) -> bool:
        ttl = actor.record.ttl_s
        if ttl is None or actor.record.pinned or self._roster.tier(actor) is Tier.NVME:
            return False
        return self._clock.monotonic() - actor.used >= ttl
