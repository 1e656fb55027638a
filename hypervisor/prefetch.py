"""While an actor waits for a slot, its state comes from the disk into a frame."""

from __future__ import annotations

import asyncio

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.catalog_port import Catalog
from statevisor.hypervisor.errors import StatevisorError
from statevisor.hypervisor.image_ports import HostFrames
from statevisor.hypervisor.states import States


class Prefetch:
    """Reads ahead for one guest's actors; never needed for a right result."""

    def __init__(self, *, frames: HostFrames, states: States, catalog: Catalog) -> None:
        self._frames = frames
        self._states = states
        self._catalog = catalog

    async def fetch(self, actor: Actor) -> bool:
        """Read the state an actor rests at into a free frame; its mailbox is held.

        False: there is no frame, or no image of just this state. Whatever is wrong with the image
        is found again, and told, by who needs it.
        """
        if not actor.rest or self._frames.get(actor.id) is not None:
            return False
        try:
            found = await self._catalog.image_at(actor.segment, actor.record.position)
            if found is None or self._frames.used + 1 >= self._frames.capacity:
                return False  # the last free frame is for whoever leaves the slot
            frame = self._frames.lend(actor.id, actor.segment, actor.rest)
            try:
                meta = await self._states.read_into(found, frame)
            except BaseException:
                self._frames.drop(actor.id)
                raise
        except StatevisorError:
            return False
        if (meta.position, meta.absorbed) != (actor.record.position, actor.rest):
            self._frames.drop(actor.id)
            return False
        await asyncio.to_thread(self._frames.seal, actor.id)
        actor.imaged = actor.record.position
        return True
