"""Work after a start that nobody has asked for yet: the last ones used are made ready again.

Recovery is lazy: whoever touches an actor has it replayed. But those that were running or used last
when the process died will most likely be touched next, so a bounded number of them is rebuilt in
the background, into slots and frames that are free anyway. They go last in everything: a touched
actor's replay goes before them, and whoever wants a slot gets theirs.
"""

from __future__ import annotations

import asyncio

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.catalog_port import Catalog
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.errors import StatevisorError
from statevisor.hypervisor.lifecycle import Power
from statevisor.hypervisor.ports import Clock, Meter
from statevisor.hypervisor.records import ActorRecord
from statevisor.hypervisor.replays import Yielded
from statevisor.hypervisor.residency import Residency
from statevisor.hypervisor.roster import Roster
from statevisor.hypervisor.tasks import Tasks
from statevisor.hypervisor.vocab import Tier


class Recovery:
    """One bounded pass over the actors that were used last."""

    def __init__(
        self,
        *,
        roster: Roster,
        tasks: Tasks,
        catalog: Catalog,
        config: VisorConfig,
        clock: Clock,
        meter: Meter,
    ) -> None:
        self._roster = roster
        self._tasks = tasks
        self._catalog = catalog
        self._config = config
        self._clock = clock
        self._meter = meter
        self._stopped = False
        self._busy: set[Actor] = set()

    def begin(self) -> None:
        """Recover in the background."""
        if self._config.recover_actors:
            self._tasks.spawn(self._run())

    def stop(self) -> None:
        """Begin no more; what goes on ends within a slice."""
        self._stopped = True
        for actor in self._busy:
            self._roster.residency(actor).dismiss(actor)

    async def _run(self) -> None:
        left = self._config.recover_tokens
        going: set[asyncio.Task[None]] = set()
        try:
            last_used = await self._catalog.recent(self._config.recover_actors)
        except StatevisorError:
            return  # the next one who asks the catalog hears of it
        for record in last_used:
            tokens = await self._missing(record)
            if not tokens or tokens > left:
                continue
            residency = self._roster.batcher(record).residency
            while going and not self._may_begin(residency):
                _, going = await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
            if not self._may_begin(residency):
                break
            left -= tokens
            going.add(self._tasks.spawn(self._recover(record, residency)))
            await asyncio.sleep(0)  # it takes its slot before the next one is looked at
        if going:
            await asyncio.wait(going)

    def _may_begin(self, residency: Residency) -> bool:
        return not (self._stopped or residency.pressed) and residency.slots.free > _kept(residency)

    async def _missing(self, record: ActorRecord) -> int:
        """How many tokens an actor's nearest image lacks."""
        if record.quarantine or record.model not in self._roster.batchers:
            return 0
        try:
            found = await self._catalog.nearest_image(record.segment, record.position)
        except StatevisorError:
            return 0  # whoever touches it learns the reason
        return max(0, record.position - max(1, 0 if found is None else found[0]))

    async def _recover(self, record: ActorRecord, residency: Residency) -> None:
        try:
            actor = await self._roster.find(record.id)
        except StatevisorError:
            return  # deleted in between
        # whoever has asked for it has its mailbox, or is done
        if actor.power is Power.HIBERNATED and actor.mailbox.try_enter():
            try:
                if residency.tier(actor) is Tier.NVME and self._may_begin(residency):
                    await self._rebuild(actor, residency)
            finally:
                actor.mailbox.leave()
                residency.wake()

    async def _rebuild(self, actor: Actor, residency: Residency) -> None:
        """Bring one actor into a slot, and on into a frame if that was the last free one."""
        last_used_us = actor.record.updated_at
        actor.unasked = True
        self._busy.add(actor)
        try:
            await residency.resume(actor)
            self._meter.count("actors_recovered_total")
            # it was not used now: whoever looks for room takes it first
            actor.used -= max(0.0, (self._clock.now_us() - last_used_us) / 1e6)
            full = residency.slots.free <= _kept(residency)
            if full and residency.frames.used < residency.frames.capacity:
                await residency.hibernate(actor, Tier.HOST)
        except (StatevisorError, Yielded):
            pass  # it is as it was; whoever touches it goes on, or learns the reason
        finally:
            actor.unasked = False
            self._busy.discard(actor)


def _kept(residency: Residency) -> int:
    """Slots that stay free for those who are asked for."""
    return max(1, residency.slots.capacity // 4)
