"""How an actor gets into a slot and out of it again.

Every method that moves an actor expects its mailbox to be held by the caller. Bytes go slot ->
frame -> image and back; which of them exist never matters for correctness: whatever is missing is
replayed from the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from statevisor.hypervisor import placement
from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.admission import Admission
from statevisor.hypervisor.arrival import Arrival
from statevisor.hypervisor.catalog_port import Catalog, Guard
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.departures import Departures
from statevisor.hypervisor.engine import Engine
from statevisor.hypervisor.errors import (
    ActorQuarantined,
    ImageCorrupt,
    IncompatibleImage,
)
from statevisor.hypervisor.evictions import Evictions
from statevisor.hypervisor.feed import NotFinite
from statevisor.hypervisor.image_ports import HostFrames, ImageMeta, Images
from statevisor.hypervisor.lifecycle import Effect, Event, Power
from statevisor.hypervisor.lineage import same_state
from statevisor.hypervisor.loading import Loading
from statevisor.hypervisor.loop import StepLoop
from statevisor.hypervisor.ports import Clock, Guest, Meter
from statevisor.hypervisor.prefetch import Prefetch
from statevisor.hypervisor.rebuilds import Rebuilds
from statevisor.hypervisor.records import ImageRef
from statevisor.hypervisor.replays import Patience, Replays
from statevisor.hypervisor.slots import SlotTable
from statevisor.hypervisor.staging import ROWS, Staging
from statevisor.hypervisor.states import States
from statevisor.hypervisor.vocab import Op, Tier

log = logging.getLogger(__name__)

NOT_FINITE = "the state is not finite"


class Residency:
    """The slots and frames of one guest and the actors that hold them."""

    def __init__(
        self,
        *,
        guest: Guest,
        engine: Engine,
        loop: StepLoop,
        frames: HostFrames,
        catalog: Catalog,
        images: Images,
        config: VisorConfig,
        clock: Clock,
        meter: Meter,
    ) -> None:
        self._guest = guest
        self._engine = engine
        self.frames = frames
        self._catalog = catalog
        self._config = config
        self._clock = clock
        self._meter = meter
        self.states = States(
            guest=guest, catalog=catalog, images=images, config=config, clock=clock, meter=meter
        )
        row_bytes = guest.layout.row_bytes
        self._staging = Staging(guest.frames(ROWS), row_bytes, engine)
        self._rebuilds = Rebuilds()
        self._replays = Replays(loop=loop, states=self.states, clock=clock, meter=meter)
        self._admission = Admission(guest.slots, config.slot_wait_s)
        self.actors: dict[str, Actor] = {}  #: actors with a slot or a frame
        self._departures = Departures(
            guest=guest,
            engine=engine,
            staging=self._staging,
            frames=frames,
            states=self.states,
            catalog=catalog,
            apply=self._apply,
            drop_frame=self._drop_frame,
            meter=meter,
        )
        self._prefetch = Prefetch(frames=frames, states=self.states, catalog=catalog)
        self.evictions = Evictions(
            frames=frames,
            states=self.states,
            admission=self._admission,
            actors=self.actors,
            candidates=self.candidates,
            hibernate=self.hibernate,
            high=config.host_high,
            low=config.host_low,
            meter=meter,
        )

    # -- queries ---------------------------------------------------------------------------------
    @property
    def slots(self) -> SlotTable:
        """Who holds which slot."""
        return self._admission.slots

    def tier(self, actor: Actor) -> Tier:
        """Where the newest bytes of an actor are."""
        if actor.slot is not None:
            return Tier.GPU
        return Tier.HOST if self.frames.get(actor.id) is not None else Tier.NVME

    def candidates(self, tier: Tier) -> tuple[placement.Candidate, ...]:
        """The actors of a tier as the placement policy sees them."""
        return tuple(
            placement.Candidate(a.id, a.used, a.record.pinned, a.mailbox.held)
            for a in self.actors.values()
            if self.tier(a) is tier
        )

    # -- into a slot -----------------------------------------------------------------------------
    async def resume(self, actor: Actor) -> None:
        """Give the actor a slot with all but its pending token absorbed.

        Raises: NoFreeSlot, ActorQuarantined, ImageCorrupt, IncompatibleImage.
        """
        arrival = await self.summon(actor)
        if arrival is not None:
            await self.land(actor, arrival)

    async def land(self, actor: Actor, arrival: Arrival) -> None:
        """Wait for a state that was summoned; a damaged one is made again. Raises: as `resume`."""
        try:
            sound = await self.arrived(actor, arrival)
        except BaseException:
            self._apply(actor, Event.FAILED)
            raise
        if not sound:
            self._apply(actor, Event.FAILED)
            await self.resume(actor)  # there is no frame any more

    async def summon(self, actor: Actor) -> Arrival | None:
        """As `resume`, but where the state need only be copied from host memory, not waited for.

        It has been handed to the engine then; None: it is there. Raises: as `resume`.
        """
        actor.used = self._clock.monotonic()
        if actor.power is Power.QUARANTINED:
            raise ActorQuarantined(f"{actor.record.name} is quarantined: {actor.record.quarantine}")
        if actor.power is Power.HIBERNATED:
            frame = self.frames.get(actor.id)
            place = (actor.segment, actor.rest)
            if frame is not None and (frame.segment, frame.absorbed) == place:
                return await self._approach(actor)
            await self._enter(actor)
        elif actor.absorbed < actor.rest:
            await self._advance(actor)
        return None

    async def _approach(self, actor: Actor) -> Arrival:
        began = self._clock.monotonic()
        slot = await self._take(actor.id)
        self._receive(actor, slot)
        actor.absorbed = actor.rest
        row = self.frames.peek(actor.id)
        arrival = Arrival(
            self._engine.run(self._guest.load, slot, row),
            self._engine.beside(self.frames.view, actor.id),
            began=began,
        )
        try:
            await arrival.begun()
        except BaseException:
            self._apply(actor, Event.FAILED)
            raise
        return arrival

    async def arrived(self, actor: Actor, arrival: Arrival) -> bool:
        """Wait for a state that was summoned; if it is damaged its frame has gone.

        The slot is still the actor's then, and also if this raises what kept the state away.
        """
        if not await arrival.sound():
            # the frame was a copy; the journal can make the state again
            self._meter.count("image_checksum_failures_total")
            return False
        self._apply(actor, Event.LOADED)
        self._resumed(Tier.HOST, arrival.began)
        return True

    async def _enter(self, actor: Actor) -> None:
        began = self._clock.monotonic()
        source = self.tier(actor)
        slot = await self._await_slot(actor)
        self._receive(actor, slot)
        try:
            await self._share(actor, slot)
        except ImageCorrupt as error:
            await self.poison(actor, error.detail)
            raise
        except NotFinite:
            await self.poison(actor, NOT_FINITE)
            raise ActorQuarantined(f"{actor.record.name}: {NOT_FINITE}") from None
        except BaseException:
            self._apply(actor, Event.FAILED)
            raise
        self._apply(actor, Event.LOADED)
        self._resumed(source, began)

    def _receive(self, actor: Actor, slot: int) -> None:
        actor.happen(Event.RESUME)
        actor.slot = slot
        self.actors[actor.id] = actor

    def _resumed(self, source: Tier, began: float) -> None:
        self._meter.observe("resume_seconds", self._moved(source, Tier.GPU, began))

    async def _await_slot(self, actor: Actor) -> int:
        """A slot; while there is none the state comes from the disk. Raises: NoFreeSlot."""
        if self.slots.free:
            return await self._take(actor.id)
        fetching = asyncio.ensure_future(self._fetch(actor))
        try:
            return await self._take(actor.id)
        finally:
            await asyncio.wait({fetching})  # it writes into a frame that must not be lent again

    async def _fetch(self, actor: Actor) -> None:
        if await self._prefetch.fetch(actor):
            self.actors[actor.id] = actor
            self.evictions.frame_taken()

    async def _advance(self, actor: Actor) -> None:
        """Catch up what a cancelled prompt left pending."""
        assert actor.slot is not None
        self._apply(actor, Event.TURN)
        try:
            await self._replay(actor.slot, actor)
        except NotFinite:
            await self.poison(actor, NOT_FINITE)
            raise ActorQuarantined(f"{actor.record.name}: {NOT_FINITE}") from None
        except BaseException:
            self._apply(actor, Event.FAILED)
            raise
        self._apply(actor, Event.TURN_DONE)

    async def _share(self, actor: Actor, slot: int) -> None:
        """Build the actor's state in its slot, or get it from whoever is building the same."""
        key = same_state(actor.path, actor.rest)
        leader = self._rebuilds.of(key)
        if self.frames.get(actor.id) is not None or not actor.rest:
            await self._build(actor, slot)
        elif leader is None:
            await self._lead(actor, slot, key)
        elif await leader.wait(slot):
            actor.absorbed = actor.rest
        else:
            await self._build(actor, slot)

    async def _build(self, actor: Actor, slot: int) -> None:
        actor.absorbed = await self._fill(actor, slot)
        await self._replay(slot, actor)

    async def _lead(self, actor: Actor, slot: int, key: tuple[int, int]) -> None:
        followers = self._rebuilds.begin(key)
        copied = False
        try:
            await self._build(actor, slot)
            self._rebuilds.end(key)
            if slots := followers.close():
                await self._engine.run(self._guest.copy, slot, slots)
            copied = True
        finally:
            if self._rebuilds.of(key) is followers:
                self._rebuilds.end(key)
            followers.tell(copied)

    async def _fill(self, actor: Actor, slot: int) -> int:
        """Load the nearest state into the slot; returns how many tokens it has absorbed."""
        if actor.new is not None:  # nobody has its state, and no image of it was ever made
            await self._engine.run(self._guest.clear, slot)
            return 0
        frame = self.frames.get(actor.id)
        if frame is not None and frame.segment == actor.segment:
            try:
                row = await self._engine.beside(self.frames.view, actor.id)
            except ImageCorrupt:
                # the frame is a copy; the journal can make the state again
                self._meter.count("image_checksum_failures_total")
            else:
                await self._engine.run(self._guest.load, slot, row)
                return frame.absorbed
        twin = self.twin(same_state(actor.path, actor.rest), actor)
        if twin is not None:
            assert twin.slot is not None
            absorbed = twin.absorbed
            await self._engine.run(self._guest.copy, twin.slot, (slot,))
            return absorbed
        absorbed, imaged = await self._load(slot, actor.segment, actor.record.position, actor)
        actor.imaged = imaged
        return absorbed

    def twin(self, wanted: tuple[int, int], besides: Actor | None) -> Actor | None:
        """An idle actor, not this one, whose slot holds a state (see lineage.same_state).

        A copy of it must be handed to the engine before anything else can be, so that no later
        step of the twin can run first, and nothing can be loaded where it stood: the twin may
        leave its slot before the copy has been made.
        """
        for other in self.actors.values():
            resting = other.power is Power.IDLE and other.slot is not None
            if other is not besides and resting and wanted[1] and other.state == wanted:
                return other
        return None

    async def _load(
        self, slot: int, segment: int, position: int, actor: Actor | None = None
    ) -> tuple[int, int]:
        """Fill a slot from the nearest image at or before a position, or with the empty state.

        A damaged image is passed over where an older one and the journal make the same state.
        """
        known = None if actor is None or actor.image is None else (position, actor.image)
        found = known or await self._catalog.nearest_image(segment, position)
        while found is not None:
            try:
                meta = await self._read(slot, found)
                break
            except ImageCorrupt as error:
                if found is known:  # it may have been collected, or written anew
                    asked = await self._catalog.nearest_image(segment, position)
                    if asked != known:
                        found = asked
                        continue
                await self.states.disown(segment, *found)
                damaged, found = found, await self._catalog.nearest_image(segment, position)
                if found == damaged:
                    raise
                log.warning("not served, and made again: %s", error.detail)
        else:
            await self._engine.run(self._guest.clear, slot)
            if actor is not None and actor.rest:
                await self._same_build(actor)
            return 0, 0
        if actor is not None and meta.absorbed < actor.rest:
            await self._same_build(actor)
        return meta.absorbed, found[0]

    async def _read(self, slot: int, found: tuple[int, ImageRef]) -> ImageMeta:
        """Load the image of a position into a slot. Raises: ImageCorrupt, IncompatibleImage."""
        at, ref = found
        async with self._staging.row() as row:
            loading = Loading(self._engine, self._guest, slot, row)
            meta = await self.states.read_into(ref, row, loading.reach)
            if meta.position != at:
                raise ImageCorrupt(f"the image of position {at} is one of position {meta.position}")
            await loading.whole()
        return meta

    async def _same_build(self, actor: Actor) -> None:
        """Refuse to replay what another build has made, unless drift is accepted.

        A build that promises no bits replays its own, and that is drift once it has told any.
        """
        head = await self._catalog.version(f"{actor.id}@{actor.record.head}")
        mine = self._guest.fingerprints
        exact = mine.exact or head.op is Op.CREATE
        if head.build is None or (head.build == mine.build and exact):
            return
        if head.build != mine.build and not self._config.accept_drift:
            raise IncompatibleImage(
                f"{actor.record.name} has tokens that only a replay can absorb, and another build "
                "generated them: the result would not be the same bits",
                hint="Start the old build once and drain it, or serve with --accept-drift.",
            )
        guard = Guard(epoch=actor.record.epoch)
        actor.record = await self._catalog.update(actor.id, guard=guard, drift=True)

    async def _replay(self, slot: int, actor: Actor) -> None:
        def took(count: int) -> None:
            actor.absorbed += count

        if actor.absorbed < actor.rest:
            place = (slot, actor.segment, actor.absorbed, actor.rest)
            await self._replays.run(
                *place, took=took, patience=self._patience(actor), known=actor.new
            )

    def _patience(self, actor: Actor) -> Patience | None:
        """How the rebuild of an actor that nobody has asked for gives way to others."""
        if not actor.unasked:
            return None
        key = same_state(actor.path, actor.rest)

        def asked() -> bool:
            followers = self._rebuilds.of(key)
            return actor.mailbox.depth > 0 or (followers is not None and bool(followers.slots))

        return Patience(asked=asked, gone=lambda: not actor.unasked or self.pressed)

    # -- out of a slot ---------------------------------------------------------------------------
    async def hibernate(self, actor: Actor, tier: Tier) -> None:
        """Move an idle or host-tier actor down; when it returns the move is done.

        Raises: ActorQuarantined, NoFreeSlot, ImageCorrupt.
        """
        began = self._clock.monotonic()
        source = self.tier(actor)
        if actor.power is Power.QUARANTINED:
            raise ActorQuarantined(f"{actor.record.name} is quarantined: {actor.record.quarantine}")
        if source is Tier.NVME or source is tier:
            return
        if source is Tier.GPU and actor.absorbed < actor.rest:
            await self._advance(actor)
        if tier is Tier.HOST:
            await self.evictions.frame_room(actor)
            await self._departures.to_host(actor)
            self.actors[actor.id] = actor
            self.evictions.frame_taken()
        elif source is Tier.HOST:
            await self._departures.demote(actor)
        else:
            await self._departures.to_nvme(actor)
        seconds = self._moved(source, tier, began)
        self._meter.observe("hibernate_seconds", seconds)

    async def _save(self, actor: Actor) -> bytearray:
        assert actor.slot is not None
        row = bytearray(self._guest.layout.row_bytes)
        await self._engine.beside(self._guest.save, actor.slot, memoryview(row))
        return row

    async def row(self, actor: Actor) -> bytearray:
        """The bytes of an idle actor's state; its mailbox is held."""
        return await self._save(actor)

    async def checkpoint(self, actor: Actor) -> ImageRef | None:
        """Write the image of an idle actor where it stands; None for the empty state."""
        return await self._departures.write(actor, await self._save(actor), actor.absorbed)

    async def replace(self, actor: Actor, row: bytes) -> None:
        """Overwrite an idle actor's slot with the state its head has just moved to."""
        assert actor.slot is not None
        await self._engine.run(self._guest.load, actor.slot, memoryview(row))
        actor.imaged = actor.record.position

    def discard(self, actor: Actor) -> None:
        """Forget the actor's bytes: they are no longer its state."""
        if actor.power is Power.IDLE or actor.power is Power.HIBERNATED:
            self._apply(actor, Event.DISCARD)
            self._drop_frame(actor)

    async def poison(self, actor: Actor, reason: str) -> None:
        """Quarantine the actor: its slot is freed and it is not scheduled again."""
        self._apply(actor, Event.POISONED)
        guard = Guard(epoch=actor.record.epoch)
        actor.record = await self._catalog.quarantine(actor.id, reason, guard=guard)

    def begin(self, actor: Actor) -> None:
        """A turn takes the slot."""
        self._apply(actor, Event.TURN)

    def settle(self, actor: Actor, *, failed: bool = False) -> None:
        """A turn lets go of the slot; if it failed the slot is freed and the journal decides."""
        self._apply(actor, Event.FAILED if failed else Event.TURN_DONE)

    def cure(self, actor: Actor) -> None:
        """A rollback has lifted the quarantine."""
        if actor.power is Power.QUARANTINED:
            self._apply(actor, Event.CURED)

    def delete(self, actor: Actor) -> None:
        """Free all that a deleted actor holds."""
        self._apply(actor, Event.DELETE)
        self._drop_frame(actor)

    # -- throw-away slots ------------------------------------------------------------------------
    @asynccontextmanager
    async def scratch(self, owner: str) -> AsyncIterator[int]:
        """A slot that belongs to no actor, for a block."""
        slot = await self._take(owner)
        try:
            yield slot
        finally:
            self._admission.give(slot, owner)

    async def copy(self, actor: Actor, slot: int) -> None:
        """Copy an idle actor's state into a throw-away slot."""
        assert actor.slot is not None
        await self._engine.run(self._guest.copy, actor.slot, (slot,))

    async def derive(
        self, owner: str, segment: int, position: int, *, before: int | None = None
    ) -> tuple[bytearray, int, int]:
        """The row of a place, worked out in a throw-away slot: row, absorbed, tokens replayed.

        `before` bounds the position of the image to begin from. Raises: ActorQuarantined (the
        state is not finite), NoFreeSlot, ImageCorrupt, IncompatibleImage.
        """
        rest = max(position - 1, 0)
        start = position if before is None else before
        async with self.scratch(owner) as slot:
            absorbed, _ = await self._load(slot, segment, start)
            taken: list[int] = []
            try:
                await self._replays.run(slot, segment, absorbed, rest, took=taken.append)
            except NotFinite:
                raise ActorQuarantined(f"at position {position} {NOT_FINITE}") from None
            row = bytearray(self._guest.layout.row_bytes)
            await self._engine.beside(self._guest.save, slot, memoryview(row))
            return row, max(absorbed, rest), sum(taken)

    def _moved(self, source: Tier, target: Tier, began: float) -> float:
        """Count a move; returns how many seconds it took."""
        labels = {"from": source.value, "to": target.value}
        seconds = self._clock.monotonic() - began
        self._meter.count("tier_moves_total", 1, **labels)
        self._meter.observe("tier_move_seconds", seconds, **labels)
        return seconds

    # -- slots -----------------------------------------------------------------------------------
    async def _take(self, owner: str) -> int:
        """A slot; makes room by moving the least recently used actor down a tier."""
        if not self.slots.free:
            self._replays.nudge()
        return await self._admission.take(owner, self.evictions.make_room)

    def wake(self) -> None:
        """Something became idle: whoever waits for a slot may look again."""
        self._admission.wake()

    @property
    def pressed(self) -> bool:
        """Whether somebody waits for a slot."""
        return self._admission.waiting > 0

    def dismiss(self, actor: Actor) -> None:
        """The rebuild of an actor that nobody has asked for ends where it stands."""
        actor.unasked = False
        self._replays.nudge()

    def _apply(self, actor: Actor, event: Event) -> None:
        for effect in actor.happen(event):
            if effect is Effect.FREE_SLOT:
                assert actor.slot is not None
                self._admission.give(actor.slot, actor.id)
                actor.slot = None
                self.actors.pop(actor.id, None)
                self.evictions.slot_freed(actor)
            elif effect is Effect.DROP_FRAME:
                self._drop_frame(actor)
        self._admission.wake()

    def _drop_frame(self, actor: Actor) -> None:
        if self.frames.get(actor.id) is not None:
            self.frames.drop(actor.id)
        if actor.slot is None:
            self.actors.pop(actor.id, None)

    def check(self) -> None:
        """Raise AssertionError unless slots and actors agree."""
        self.slots.check()
        for actor in self.actors.values():
            if actor.slot is not None:
                assert self.slots.owner(actor.slot) == actor.id
