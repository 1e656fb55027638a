"""How an actor gets out of its slot, into host memory or onto the disk.

A slot is free as soon as its row is copied, before the disk has it. A state whose image is there
leaves for free. What cannot be kept stays where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.catalog_port import Catalog
from statevisor.hypervisor.engine import Engine
from statevisor.hypervisor.errors import ImageCorrupt, QuotaExceeded
from statevisor.hypervisor.filling import Filled, Filling
from statevisor.hypervisor.image_ports import HostFrames
from statevisor.hypervisor.lifecycle import Event
from statevisor.hypervisor.ports import Guest, Meter
from statevisor.hypervisor.records import ImageRef
from statevisor.hypervisor.staging import Staging
from statevisor.hypervisor.states import Row, States


class Departures:
    """Moves one guest's actors down; the mailbox of whoever moves is held."""

    def __init__(
        self,
        *,
        guest: Guest,
        engine: Engine,
        staging: Staging,
        frames: HostFrames,
        states: States,
        catalog: Catalog,
        apply: Callable[[Actor, Event], None],
        drop_frame: Callable[[Actor], None],
        meter: Meter,
    ) -> None:
        """`apply` runs an event with its effects."""
        self._guest = guest
        self._engine = engine
        self._staging = staging
        self._frames = frames
        self._states = states
        self._catalog = catalog
        self._apply = apply
        self._drop_frame = drop_frame
        self._meter = meter

    async def to_host(self, actor: Actor) -> None:
        """From a slot into a frame; one is free."""
        assert actor.slot is not None
        self._apply(actor, Event.HIBERNATE)
        frame = self._frames.lend(actor.id, actor.segment, actor.absorbed)
        try:
            await self._engine.beside(self._save, actor.id, actor.slot, frame)
        except BaseException:
            self._frames.drop(actor.id)
            self._apply(actor, Event.FAILED)
            raise
        self._apply(actor, Event.SAVED)

    def _save(self, actor_id: str, slot: int, frame: memoryview) -> None:
        self._guest.save(slot, frame)
        self._frames.seal(actor_id)

    async def to_nvme(self, actor: Actor) -> None:
        """From a slot onto the disk. Raises: QuotaExceeded (it stays in its slot), Unavailable."""
        likely = actor.imaged == actor.record.position or not self._states.fit
        if not actor.absorbed or (likely and await self._wanted(actor, actor.absorbed) is None):
            self._apply(actor, Event.HIBERNATE)
            self._apply(actor, Event.SAVED)
            return
        self._check_room()
        async with self._staging.row() as row:
            await self._depart(actor, row)

    async def _depart(self, actor: Actor, row: memoryview) -> None:
        """By way of a row of host memory: what of it is copied is written while the rest is."""
        assert actor.slot is not None
        self._apply(actor, Event.HIBERNATE)
        filling = Filling()
        saving = self._engine.beside(filling.fill, self._guest.save, actor.slot, row)
        keeping = asyncio.create_task(self._keep(actor, row, actor.absorbed, filling.wait))
        try:
            await saving
        except BaseException:
            keeping.cancel()  # the slot may be another's before it is copied: no name for such
            self._apply(actor, Event.FAILED)
            await asyncio.gather(keeping, return_exceptions=True)
            raise
        self._apply(actor, Event.SAVED)
        await keeping

    async def _keep(self, actor: Actor, row: Row, absorbed: int, filled: Filled) -> None:
        pending: tuple[int, ...] | None
        if _is_new(actor, absorbed) and actor.last_token is not None:
            # Nobody is asked whether it has an image: that took as long as the whole copy. If it
            # has, the one written now is given back.
            pending = (actor.last_token,)
        else:
            pending = await self._wanted(actor, absorbed)
        if pending is not None:
            await self._write(actor, row, absorbed, pending, filled)

    async def demote(self, actor: Actor) -> None:
        """From a frame onto the disk. Raises: QuotaExceeded (it stays in its frame), Unavailable.

        A frame that the journal or an image has overtaken is only dropped.
        """
        frame = self._frames.get(actor.id)
        fresh = frame is not None and frame.segment == actor.segment
        if fresh and frame is not None and frame.absorbed == actor.rest and actor.rest:
            await self._keep_frame(actor)
        self._drop_frame(actor)

    async def _keep_frame(self, actor: Actor) -> None:
        pending = await self._wanted(actor, actor.rest)
        if pending is None:
            return
        self._check_room()
        try:
            row = await self._engine.beside(self._frames.view, actor.id)
        except ImageCorrupt:
            # the frame is gone; it was a copy, and the journal can make the state again
            self._meter.count("image_checksum_failures_total")
        else:
            await self._write(actor, row, actor.rest, pending)

    async def write(self, actor: Actor, row: Row, absorbed: int) -> ImageRef | None:
        """The image of where the actor stands, written now if there is none; None: empty state."""
        found, pending = await self._catalog.standing(
            actor.segment, actor.record.position, absorbed
        )
        if found is None and absorbed:
            return await self._write(actor, row, absorbed, pending)
        actor.imaged = actor.record.position
        return found

    async def _wanted(self, actor: Actor, absorbed: int) -> tuple[int, ...] | None:
        """The tokens that an image of where the actor stands has to name; None: there is one."""
        place = actor.segment, actor.record.position
        found, pending = await self._catalog.standing(*place, absorbed)
        if found is None:
            return pending
        actor.is_imaged(*place, found)
        return None

    async def _write(
        self,
        actor: Actor,
        row: Row,
        absorbed: int,
        pending: tuple[int, ...],
        filled: Filled | None = None,
    ) -> ImageRef:
        place = actor.segment, actor.record.position
        meta = self._states.meta(place[1], absorbed, pending)
        made = await self._states.keep(*place, row, meta, filled)
        actor.is_imaged(*place, made)
        return made

    def _check_room(self) -> None:
        if not self._states.fit:
            raise QuotaExceeded(
                "the images fill the room they may use: the state stays where it is",
                hint="Delete actors and run gc, or raise nvme_bytes.",
            )


def _is_new(actor: Actor, absorbed: int) -> bool:
    """Whether nothing is known of an image where the actor stands, a token behind its state."""
    return absorbed == actor.rest and actor.imaged != actor.record.position
