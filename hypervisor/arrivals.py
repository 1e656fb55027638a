"""How an actor gets into a slot: from its frame while that is checked, or built there.

The mailbox of whoever moves is held. If its state cannot come the slot is freed, and the journal
decides; a state that is damaged beyond the journal, or not finite, quarantines its actor.
"""

from __future__ import annotations

import asyncio

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.arrival import Arrival
from statevisor.hypervisor.builder import Builder
from statevisor.hypervisor.engine import Engine
from statevisor.hypervisor.errors import ActorQuarantined, ImageCorrupt
from statevisor.hypervisor.evictions import Evictions
from statevisor.hypervisor.feed import NotFinite
from statevisor.hypervisor.lifecycle import Event, Power
from statevisor.hypervisor.moves import Moves
from statevisor.hypervisor.ports import Clock, Guest, Meter
from statevisor.hypervisor.prefetch import Prefetch
from statevisor.hypervisor.replays import Replays
from statevisor.hypervisor.residents import NOT_FINITE, Residents
from statevisor.hypervisor.vocab import Tier


class Arrivals:
    """Moves one guest's actors into slots."""

    def __init__(
        self,
        *,
        guest: Guest,
        engine: Engine,
        residents: Residents,
        builder: Builder,
        replays: Replays,
        prefetch: Prefetch,
        evictions: Evictions,
        moves: Moves,
        clock: Clock,
        meter: Meter,
    ) -> None:
        self._guest = guest
        self._engine = engine
        self._residents = residents
        self._builder = builder
        self._replays = replays
        self._prefetch = prefetch
        self._evictions = evictions
        self._moves = moves
        self._clock = clock
        self._meter = meter

    async def take(self, owner: str) -> int:
        """A slot; makes room by moving the least recently used actor down a tier.

        Raises: NoFreeSlot.
        """
        if not self._residents.slots.free:
            self._replays.nudge()
        return await self._residents.admission.take(owner, self._evictions.make_room)

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
            self._residents.apply(actor, Event.FAILED)
            raise
        if not sound:
            self._residents.apply(actor, Event.FAILED)
            await self.resume(actor)  # there is no frame any more

    async def summon(self, actor: Actor) -> Arrival | None:
        """As `resume`, but where the state need only be copied from host memory, not waited for.

        It has been handed to the engine then; None: it is there. Raises: as `resume`.
        """
        actor.used = self._clock.monotonic()
        if actor.power is Power.QUARANTINED:
            raise ActorQuarantined(f"{actor.record.name} is quarantined: {actor.record.quarantine}")
        if actor.power is Power.HIBERNATED:
            frame = self._residents.frames.get(actor.id)
            place = (actor.segment, actor.rest)
            if frame is not None and (frame.segment, frame.absorbed) == place:
                return await self._approach(actor)
            await self._enter(actor)
        elif actor.absorbed < actor.rest:
            await self.advance(actor)
        return None

    async def _approach(self, actor: Actor) -> Arrival:
        began = self._clock.monotonic()
        slot = await self.take(actor.id)
        self._residents.enter(actor, slot)
        actor.absorbed = actor.rest
        row = self._residents.frames.peek(actor.id)
        arrival = Arrival(
            self._engine.run(self._guest.load, slot, row),
            self._engine.beside(self._residents.frames.view, actor.id),
            began=began,
        )
        try:
            await arrival.begun()
        except BaseException:
            self._residents.apply(actor, Event.FAILED)
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
        self._residents.apply(actor, Event.LOADED)
        self._resumed(Tier.HOST, arrival.began)
        return True

    async def _enter(self, actor: Actor) -> None:
        began = self._clock.monotonic()
        source = self._residents.tier(actor)
        slot = await self._await_slot(actor)
        self._residents.enter(actor, slot)
        try:
            await self._builder.build(actor, slot)
        except ImageCorrupt as error:
            await self._residents.poison(actor, error.detail)
            raise
        except NotFinite:
            await self._residents.poison(actor, NOT_FINITE)
            raise ActorQuarantined(f"{actor.record.name}: {NOT_FINITE}") from None
        except BaseException:
            self._residents.apply(actor, Event.FAILED)
            raise
        self._residents.apply(actor, Event.LOADED)
        self._resumed(source, began)

    def _resumed(self, source: Tier, began: float) -> None:
        seconds = self._moves.made(source, Tier.GPU, began)
        self._meter.observe("resume_seconds", seconds)

    async def _await_slot(self, actor: Actor) -> int:
        """A slot; while there is none the state comes from the disk. Raises: NoFreeSlot."""
        if self._residents.slots.free:
            return await self.take(actor.id)
        fetching = asyncio.ensure_future(self._fetch(actor))
        try:
            return await self.take(actor.id)
        finally:
            await asyncio.wait({fetching})  # it writes into a frame that must not be lent again

    async def _fetch(self, actor: Actor) -> None:
        if await self._prefetch.fetch(actor):
            self._residents.frame(actor)
            self._evictions.frame_taken()

    async def advance(self, actor: Actor) -> None:
        """Catch up what a cancelled prompt left pending. Raises: ActorQuarantined."""
        assert actor.slot is not None
        self._residents.apply(actor, Event.TURN)
        try:
            await self._builder.replay(actor, actor.slot)
        except NotFinite:
            await self._residents.poison(actor, NOT_FINITE)
            raise ActorQuarantined(f"{actor.record.name}: {NOT_FINITE}") from None
        except BaseException:
            self._residents.apply(actor, Event.FAILED)
            raise
        self._residents.apply(actor, Event.TURN_DONE)
