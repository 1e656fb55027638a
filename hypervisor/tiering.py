"""Moving actors between tiers by hand, and how full the tiers are."""

from __future__ import annotations

from collections.abc import Mapping

from statevisor.hypervisor import placement
from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.catalog_port import ActorQuery, Catalog
from statevisor.hypervisor.commands import (
    ActorView,
    DrainView,
    Evict,
    EvictView,
    Hibernate,
    Resume,
    TierView,
)
from statevisor.hypervisor.errors import (
    ActorNotFound,
    ActorQuarantined,
    InvalidRequest,
    NoFreeSlot,
    QuotaExceeded,
    StatevisorError,
)
from statevisor.hypervisor.image_ports import Images
from statevisor.hypervisor.lifecycle import Power
from statevisor.hypervisor.ports import Clock
from statevisor.hypervisor.records import ActorRecord
from statevisor.hypervisor.residency import Residency
from statevisor.hypervisor.roster import Roster
from statevisor.hypervisor.tasks import Tasks
from statevisor.hypervisor.vocab import Tier


class Tiering:
    """Tiers as an administrator sees them."""

    def __init__(
        self, *, roster: Roster, tasks: Tasks, catalog: Catalog, images: Images, clock: Clock
    ) -> None:
        self._roster = roster
        self._tasks = tasks
        self._catalog = catalog
        self._images = images
        self._clock = clock

    async def hibernate(self, command: Hibernate) -> ActorView:
        """Move an actor down; when it answers the move is done."""
        return await self._tasks.whole(self._hibernate(command))

    async def _hibernate(self, command: Hibernate) -> ActorView:
        if command.tier is Tier.GPU:
            raise InvalidRequest("hibernate moves down: to host or nvme", hint="Use resume.")
        actor = await self._roster.find(command.actor)
        async with actor.mailbox.turn():
            self._roster.check_generation(actor, command)
            await self._roster.residency(actor).hibernate(actor, command.tier)
        return self._roster.view(actor)

    async def resume(self, command: Resume) -> ActorView:
        """Move an actor into a slot; when it answers the move is done."""
        return await self._tasks.whole(self._resume(command))

    async def _resume(self, command: Resume) -> ActorView:
        self._roster.accepting()
        actor = await self._roster.find(command.actor)
        async with actor.mailbox.turn():
            self._roster.check_generation(actor, command)
            await self._roster.residency(actor).resume(actor)
        return self._roster.view(actor)

    async def tiers(self) -> tuple[TierView, ...]:
        """How full every tier is, over all guests."""
        batchers = self._roster.batchers.values()
        actors = list(self._roster.actors.values())
        total = await self._catalog.count_actors()
        gpu = sum(a.slot is not None for a in actors)
        host = sum(self._roster.tier(a) is Tier.HOST for a in actors)
        slots = sum(b.residency.slots.capacity for b in batchers)
        used = sum(b.residency.slots.capacity - b.residency.slots.free for b in batchers)
        frames = [(b.guest.layout.row_bytes, b.residency.frames) for b in batchers]
        return (
            TierView(
                tier=Tier.GPU,
                slots_capacity=slots,
                slots_used=used,
                capacity_bytes=sum(
                    b.guest.layout.row_bytes * b.residency.slots.capacity for b in batchers
                ),
                used_bytes=sum(
                    b.guest.layout.row_bytes * (b.residency.slots.capacity - b.residency.slots.free)
                    for b in batchers
                ),
                actors=gpu,
            ),
            TierView(
                tier=Tier.HOST,
                slots_capacity=sum(f.capacity for _, f in frames),
                slots_used=sum(f.used for _, f in frames),
                capacity_bytes=sum(size * f.capacity for size, f in frames),
                used_bytes=sum(size * f.used for size, f in frames),
                actors=host,
            ),
            TierView(
                tier=Tier.NVME,
                slots_capacity=None,
                slots_used=None,
                capacity_bytes=self._images.capacity_bytes,
                used_bytes=self._images.used_bytes,
                actors=total - gpu - host,
            ),
        )

    async def evict(self, command: Evict) -> EvictView:
        """Move actors of one tier down by hand; running and pinned ones are skipped and listed.

        So are those that the lower tier has no room for. Raises: NoFreeSlot or QuotaExceeded, if
        that is why nobody moved.
        """
        order = [Tier.GPU, Tier.HOST, Tier.NVME]
        if order.index(command.target) <= order.index(command.source):
            raise InvalidRequest("evict moves down: gpu to host or nvme, host to nvme")
        return await self._tasks.whole(self._evict(command))

    async def _evict(self, command: Evict) -> EvictView:
        wanted: set[str] | None = None
        if command.actors is not None:
            wanted = {(await self._catalog.actor(key)).id for key in command.actors}
        moved: list[str] = []
        skipped: list[str] = []
        nbytes = 0
        for batcher in self._roster.batchers.values():
            residency, size = batcher.residency, batcher.guest.layout.row_bytes
            there = [
                c for c in residency.candidates(command.source) if wanted is None or c.id in wanted
            ]
            keys = placement.select(
                there,
                now=self._clock.monotonic(),
                row_bytes=size,
                older_than_s=command.older_than_s,
                nbytes=command.nbytes,
                count=command.count,
            )
            skipped += [self._roster.name(c.id) for c in there if c.busy or c.pinned]
            full: StatevisorError | None = None
            for key in keys:
                name = self._roster.name(key)
                try:
                    moves = full is None and (
                        command.dry_run or await self._evict_one(residency, key, command.target)
                    )
                except (NoFreeSlot, QuotaExceeded) as error:
                    full, moves = error, False
                if moves:
                    moved.append(name)
                    nbytes += size
                else:
                    skipped.append(name)
            if full is not None and not moved:
                raise full
        return EvictView(moved=tuple(moved), skipped=tuple(skipped), nbytes=nbytes)

    async def _evict_one(self, residency: Residency, key: str, tier: Tier) -> bool:
        actor = residency.actors.get(key)
        if actor is None or not actor.mailbox.try_enter():
            return False
        try:
            await residency.hibernate(actor, tier)
        except ActorQuarantined:
            return False  # found not finite when it was caught up; the others go on
        finally:
            actor.mailbox.leave()
        return True

    async def lay_down(self) -> DrainView:
        """Move every actor to nvme and write the images that are missing there."""
        moved, written, failed = 0, 0, []
        for actor in list(self._roster.actors.values()):
            if self._roster.tier(actor) is not Tier.NVME:
                fault = await self._down(actor)
                moved += fault is None
                failed += [fault] if fault else []
        after: str | None = None
        more = True
        while more:
            records, more = await self._catalog.actors(ActorQuery(after=after, limit=200))
            for record in records:
                after = record.id
                if await self._has_gap(record):
                    fault = await self._down(await self._roster.admit(record))
                    written += fault is None
                    failed += [fault] if fault else []
        return DrainView(hibernated=moved, images=moved + written, failed=tuple(failed))

    async def _has_gap(self, record: ActorRecord) -> bool:
        if record.position < 2 or record.quarantine or record.model not in self._roster.batchers:
            return False
        return await self._catalog.image_at(record.segment, record.position) is None

    async def _down(self, actor: Actor) -> str | None:
        """Resume an actor if it has to be caught up, and hibernate it; returns what went wrong."""
        residency = self._roster.residency(actor)
        try:
            async with actor.mailbox.turn():
                if self._roster.tier(actor) is Tier.NVME:
                    await residency.resume(actor)
                await residency.hibernate(actor, Tier.NVME)
        except ActorNotFound:  # deleted meanwhile
            return None
        except StatevisorError as error:
            return f"{actor.record.name}: {error.code}"
        return None

    def stats(self) -> Mapping[str, float]:
        """Gauges of the moment."""
        batchers = self._roster.batchers.values()
        waiting = sum(a.mailbox.depth for a in self._roster.actors.values())
        running = sum(a.turn is not None for a in self._roster.actors.values())
        capacity = sum(b.residency.slots.capacity for b in batchers)
        free = sum(b.residency.slots.free for b in batchers)
        powers = {power.value: 0 for power in Power if power is not Power.DELETED}
        for actor in self._roster.actors.values():
            if actor.power.value in powers:
                powers[actor.power.value] += 1
        return {
            "requests_running": running,
            "requests_waiting": waiting,
            "mailbox_depth": waiting,
            "slots_free": free,
            "slots_used": capacity - free,
            **{f"actors_{power}": float(count) for power, count in powers.items()},
        }
