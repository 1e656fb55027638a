"""How an actor gets into a slot and out of it again.

Every method that moves an actor expects its mailbox to be held by the caller. Bytes go slot ->
frame -> image and back; which of them exist never matters for correctness: whatever is missing is
replayed from the journal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from statevisor.hypervisor import placement
from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.admission import Admission
from statevisor.hypervisor.arrival import Arrival
from statevisor.hypervisor.arrivals import Arrivals
from statevisor.hypervisor.builder import Builder
from statevisor.hypervisor.catalog_port import Catalog
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.departures import Departures
from statevisor.hypervisor.engine import Engine
from statevisor.hypervisor.errors import ActorQuarantined
from statevisor.hypervisor.evictions import Evictions
from statevisor.hypervisor.feed import NotFinite
from statevisor.hypervisor.image_ports import HostFrames, Images
from statevisor.hypervisor.lifecycle import Event, Power
from statevisor.hypervisor.loop import StepLoop
from statevisor.hypervisor.moves import Moves
from statevisor.hypervisor.ports import Clock, Guest, Meter
from statevisor.hypervisor.prefetch import Prefetch
from statevisor.hypervisor.records import ImageRef
from statevisor.hypervisor.replays import Replays
from statevisor.hypervisor.residents import NOT_FINITE, Residents
from statevisor.hypervisor.slots import SlotTable
from statevisor.hypervisor.staging import ROWS, Staging
from statevisor.hypervisor.states import States
from statevisor.hypervisor.vocab import Tier


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
        self._clock = clock
        self._meter = meter
        self.states = States(
            guest=guest, catalog=catalog, images=images, config=config, clock=clock, meter=meter
        )
        admission = Admission(guest.slots, config.slot_wait_s)
        residents = self._residents = Residents(frames, admission, catalog)
        self.actors = residents.actors  #: actors with a slot or a frame
        self.frames = frames
        staging = Staging(guest.frames(ROWS), guest.layout.row_bytes, engine)
        self._replays = Replays(loop=loop, states=self.states, clock=clock, meter=meter)
        self._builder = Builder(
            guest=guest,
            engine=engine,
            residents=residents,
            staging=staging,
            states=self.states,
            replays=self._replays,
            catalog=catalog,
            config=config,
            meter=meter,
        )
        self._departures = Departures(
            guest=guest,
            engine=engine,
            staging=staging,
            frames=frames,
            states=self.states,
            catalog=catalog,
            apply=residents.apply,
            drop_frame=residents.drop_frame,
            meter=meter,
        )
        self.evictions = Evictions(
            frames=frames,
            states=self.states,
            admission=admission,
            actors=residents.actors,
            movable=residents.movable,
            hibernate=self.hibernate,
            high=config.host_high,
            low=config.host_low,
            meter=meter,
        )
        residents.on_slot_freed = self.evictions.slot_freed
        self._moves = Moves(clock, meter)
        self._arrivals = Arrivals(
            guest=guest,
            engine=engine,
            residents=residents,
            builder=self._builder,
            replays=self._replays,
            prefetch=Prefetch(frames=frames, states=self.states, catalog=catalog),
            evictions=self.evictions,
            moves=self._moves,
            clock=clock,
            meter=meter,
        )

    # -- queries ---------------------------------------------------------------------------------
    @property
    def slots(self) -> SlotTable:
        """Who holds which slot."""
        return self._residents.slots

    @property
    def pressed(self) -> bool:
        """Whether somebody waits for a slot."""
        return self._residents.pressed

    def tier(self, actor: Actor) -> Tier:
        """Where the newest bytes of an actor are."""
        return self._residents.tier(actor)

    def candidates(self, tier: Tier) -> tuple[placement.Candidate, ...]:
        """The actors of a tier as the placement policy sees them."""
        return self._residents.candidates(tier)

    def twin(self, wanted: tuple[int, int], besides: Actor | None) -> Actor | None:
        """Whose slot holds a state: see `Residents.twin`."""
        return self._residents.twin(wanted, besides)

    # -- into a slot -----------------------------------------------------------------------------
    async def resume(self, actor: Actor) -> None:
        """Give the actor a slot with all but its pending token absorbed.

        Raises: NoFreeSlot, ActorQuarantined, ImageCorrupt, IncompatibleImage.
        """
        await self._arrivals.resume(actor)

    async def summon(self, actor: Actor) -> Arrival | None:
        """As `resume`, but a state that need only be copied is not waited for: `Arrivals`."""
        return await self._arrivals.summon(actor)

    async def land(self, actor: Actor, arrival: Arrival) -> None:
        """Wait for a state that was summoned; a damaged one is made again. Raises: as `resume`."""
        await self._arrivals.land(actor, arrival)

    async def arrived(self, actor: Actor, arrival: Arrival) -> bool:
        """Wait for a state that was summoned; False if it is damaged: see `Arrivals`."""
        return await self._arrivals.arrived(actor, arrival)

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
            await self._arrivals.advance(actor)
        if tier is Tier.HOST:
            await self.evictions.frame_room(actor)
            await self._departures.to_host(actor)
            self._residents.frame(actor)
            self.evictions.frame_taken()
        elif source is Tier.HOST:
            await self._departures.demote(actor)
        else:
            await self._departures.to_nvme(actor)
        seconds = self._moves.made(source, tier, began)
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
            self._residents.apply(actor, Event.DISCARD)
            self._residents.drop_frame(actor)

    async def poison(self, actor: Actor, reason: str) -> None:
        """Quarantine the actor: its slot is freed and it is not scheduled again."""
        await self._residents.poison(actor, reason)

    def begin(self, actor: Actor) -> None:
        """A turn takes the slot."""
        self._residents.apply(actor, Event.TURN)

    def settle(self, actor: Actor, *, failed: bool = False) -> None:
        """A turn lets go of the slot; if it failed the slot is freed and the journal decides."""
        self._residents.apply(actor, Event.FAILED if failed else Event.TURN_DONE)

    def cure(self, actor: Actor) -> None:
        """A rollback has lifted the quarantine."""
        if actor.power is Power.QUARANTINED:
            self._residents.apply(actor, Event.CURED)

    def delete(self, actor: Actor) -> None:
        """Free all that a deleted actor holds."""
        self._residents.apply(actor, Event.DELETE)
        self._residents.drop_frame(actor)

    # -- throw-away slots ------------------------------------------------------------------------
    @asynccontextmanager
    async def scratch(self, owner: str) -> AsyncIterator[int]:
        """A slot that belongs to no actor, for a block."""
        slot = await self._arrivals.take(owner)
        try:
            yield slot
        finally:
            self._residents.admission.give(slot, owner)

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
            absorbed, _ = await self._builder.load(slot, segment, start)
            taken: list[int] = []
            try:
                await self._replays.run(slot, segment, absorbed, rest, took=taken.append)
            except NotFinite:
                raise ActorQuarantined(f"at position {position} {NOT_FINITE}") from None
            row = bytearray(self._guest.layout.row_bytes)
            await self._engine.beside(self._guest.save, slot, memoryview(row))
            return row, max(absorbed, rest), sum(taken)

    # -- slots -----------------------------------------------------------------------------------
    def wake(self) -> None:
        """Something became idle: whoever waits for a slot may look again."""
        self._residents.admission.wake()

    def dismiss(self, actor: Actor) -> None:
        """The rebuild of an actor that nobody has asked for ends where it stands."""
        actor.unasked = False
        self._replays.nudge()

    def check(self) -> None:
        """Raise AssertionError unless slots and actors agree."""
        self._residents.check()
