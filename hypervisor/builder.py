"""How a slot gets its state: from a frame, a twin, an image or the empty state, and the journal.

Which of them exist never matters for correctness: whatever is missing is replayed. All who wake at
one place share one replay.
"""

from __future__ import annotations

import logging

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.catalog_port import Catalog, Guard
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.engine import Engine
from statevisor.hypervisor.errors import ImageCorrupt, IncompatibleImage
from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.lineage import same_state
from statevisor.hypervisor.loading import Loading
from statevisor.hypervisor.ports import Guest, Meter
from statevisor.hypervisor.rebuilds import Rebuilds
from statevisor.hypervisor.records import ImageRef
from statevisor.hypervisor.replays import Patience, Replays
from statevisor.hypervisor.residents import Residents
from statevisor.hypervisor.staging import Staging
from statevisor.hypervisor.states import States
from statevisor.hypervisor.vocab import Op

log = logging.getLogger(__name__)


class Builder:
    """Makes states in the slots of one guest; the mailbox of whose state it is is held."""

    def __init__(
        self,
        *,
        guest: Guest,
        engine: Engine,
        residents: Residents,
        staging: Staging,
        states: States,
        replays: Replays,
        catalog: Catalog,
        config: VisorConfig,
        meter: Meter,
    ) -> None:
        self._guest = guest
        self._engine = engine
        self._residents = residents
        self._staging = staging
        self._states = states
        self._replays = replays
        self._catalog = catalog
        self._config = config
        self._meter = meter
        self._rebuilds = Rebuilds()

    async def build(self, actor: Actor, slot: int) -> None:
        """Build the actor's state in its slot, or get it from whoever is building the same.

        Raises: ImageCorrupt, IncompatibleImage, NotFinite, Yielded.
        """
        key = same_state(actor.path, actor.rest)
        leader = self._rebuilds.of(key)
        if self._residents.frames.get(actor.id) is not None or not actor.rest:
            await self._build(actor, slot)
        elif leader is None:
            await self._lead(actor, slot, key)
        elif await leader.wait(slot):
            actor.absorbed = actor.rest
        else:
            await self._build(actor, slot)

    async def _build(self, actor: Actor, slot: int) -> None:
        actor.absorbed = await self._fill(actor, slot)
        await self.replay(actor, slot)

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
        frame = self._residents.frames.get(actor.id)
        if frame is not None and frame.segment == actor.segment:
            try:
                row = await self._engine.beside(self._residents.frames.view, actor.id)
            except ImageCorrupt:
                # the frame is a copy; the journal can make the state again
                self._meter.count("image_checksum_failures_total")
            else:
                await self._engine.run(self._guest.load, slot, row)
                return frame.absorbed
        twin = self._residents.twin(same_state(actor.path, actor.rest), actor)
        if twin is not None:
            assert twin.slot is not None
            absorbed = twin.absorbed
            await self._engine.run(self._guest.copy, twin.slot, (slot,))
            return absorbed
        absorbed, imaged = await self.load(slot, actor.segment, actor.record.position, actor)
        actor.imaged = imaged
        return absorbed

    async def load(
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
                await self._states.disown(segment, *found)
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
            meta = await self._states.read_into(ref, row, loading.reach)
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

    async def replay(self, actor: Actor, slot: int) -> None:
        """Absorb what of the transcript the slot has not. Raises: NotFinite, Yielded."""

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

        return Patience(asked=asked, gone=lambda: not actor.unasked or self._residents.pressed)
