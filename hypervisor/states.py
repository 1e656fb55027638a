"""States at rest: rows read from images and written as images, and the tokens between them."""

from __future__ import annotations

from collections.abc import Sequence

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.catalog_port import Catalog
from statevisor.hypervisor.checkpoints import CheckpointPolicy
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.errors import ImageCorrupt, IncompatibleImage, StatevisorError
from statevisor.hypervisor.filling import Filled, Reached
from statevisor.hypervisor.image_ports import ImageMeta, Images
from statevisor.hypervisor.ports import Clock, Guest, Meter
from statevisor.hypervisor.records import ImageRef

Row = bytes | bytearray | memoryview


class States:
    """The images and transcripts of one guest's actors."""

    def __init__(
        self,
        *,
        guest: Guest,
        catalog: Catalog,
        images: Images,
        config: VisorConfig,
        clock: Clock,
        meter: Meter,
    ) -> None:
        self._guest = guest
        self._catalog = catalog
        self._images = images
        self._clock = clock
        self._meter = meter
        self.checkpoints = CheckpointPolicy(
            image_bytes=guest.layout.row_bytes,
            most_tokens=config.checkpoint_tokens,
            clock=clock,
        )

    @property
    def fit(self) -> bool:
        """Whether one more image can be written now."""
        return self._images.fits(self._guest.layout.row_bytes)

    def meta(self, position: int, absorbed: int, pending: Sequence[int]) -> ImageMeta:
        """What an image of this guest says of itself."""
        return ImageMeta(
            layout=self._guest.layout,
            fingerprints=self._guest.fingerprints,
            position=position,
            absorbed=absorbed,
            pending=tuple(pending),
        )

    async def tokens(self, segment: int, start: int, stop: int) -> tuple[int, ...]:
        """The tokens of a path in start..stop."""
        if start >= stop:
            return ()
        runs = await self._catalog.transcript(segment, start, stop)
        return tuple(token for run in runs for token in run.tokens)

    async def read(self, ref: ImageRef) -> tuple[bytearray, ImageMeta]:
        """An image's row, checked against its digest and this guest's fingerprints."""
        row = bytearray(self._guest.layout.row_bytes)
        return row, await self.read_into(ref, memoryview(row))

    async def read_into(
        self, ref: ImageRef, row: memoryview, reached: Reached | None = None
    ) -> ImageMeta:
        """As `read`, into memory of the caller; its bytes are undefined if this raises.

        `reached` is told of bytes that are there, before they are checked.
        """
        mine = self._guest.fingerprints
        if ref.layout != mine.layout or ref.weights != mine.weights:
            raise IncompatibleImage(f"image {ref.digest} belongs to another model")
        try:
            return await self._images.get(ref, row, reached)
        except ImageCorrupt:
            self._meter.count("image_checksum_failures_total")
            raise

    async def disown(self, segment: int, position: int, ref: ImageRef) -> None:
        """Take the name from a damaged image, as a repair does, if a replay can make it again.

        `position` is its place on the path of `segment`. An image that no journal leads to keeps
        its name, and so does one that this build cannot make again. The bytes stay until a
        collection.
        """
        mine = self._guest.fingerprints
        if ref.build != mine.build or not mine.exact:
            return
        here: int | None = segment
        while here is not None:
            for one in await self._catalog.checkpoints(here - 1, 1):
                if (one.segment, one.position, one.image) == (here, position, ref):
                    await self._catalog.forget([(here, position)])
                    return
            here = (await self._catalog.segment(here)).parent

    async def cache(
        self, actor: Actor, segment: int, position: int, row: bytearray, absorbed: int
    ) -> None:
        """Write a checkpoint; without it a crash replays more, so a failure is only counted."""
        try:
            pending = await self.tokens(segment, absorbed, position)
            await self.keep(segment, position, row, self.meta(position, absorbed, pending))
        except StatevisorError:
            self._meter.count("checkpoints_missed_total")
        else:
            if actor.segment == segment:
                actor.imaged = max(actor.imaged, position)

    async def keep(
        self,
        segment: int,
        position: int,
        row: Row,
        meta: ImageMeta,
        filled: Filled | None = None,
    ) -> ImageRef:
        """Make one row durable and name it as the image of a place; returns the one it has.

        `filled` waits for bytes of a row that is still being filled.
        """
        made = await self._put(row, meta, filled)
        kept = await self._catalog.keep_image(segment, position, made)
        if kept != made:
            self._images.free(made)
        return kept

    async def store(self, row: Row, meta: ImageMeta) -> ImageRef:
        """Make one row durable; an image of the same digest is used again."""
        made = await self._put(row, meta)
        known = await self._catalog.image(made.digest)
        if known is None:
            return made
        self._images.free(made)
        return known

    async def _put(self, row: Row, meta: ImageMeta, filled: Filled | None = None) -> ImageRef:
        """Write a row.

        Equal states at two places are rare, and to hash first would take as long as to write: so
        it is written while it is hashed, and given back if it is known.
        """
        began = self._clock.monotonic()
        made = await self._images.put(memoryview(row), meta, filled)
        self.checkpoints.wrote(made.length, self._clock.monotonic() - began)
        return made
