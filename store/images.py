"""Durable images in slab files.

An image is written in the order: the bytes, its header, the sync; then it is named by a
transaction of the catalog. So a named image is whole, and what a crash leaves behind is unnamed,
which means free. Extents are written once and not changed until they are free.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from statevisor.hypervisor.errors import (
    ImageCorrupt,
    IncompatibleImage,
    StatevisorError,
    Unavailable,
)
from statevisor.hypervisor.filling import Filled, Reached
from statevisor.hypervisor.image_ports import Extent, ImageMeta
from statevisor.hypervisor.layout import Fingerprints
from statevisor.hypervisor.records import ImageRef
from statevisor.store import codec
from statevisor.store.digest import digest
from statevisor.store.direct_read import DirectRead, suits
from statevisor.store.extent import ExtentHeader, extent_bytes
from statevisor.store.extent_io import (
    at,
    check_ref,
    meta_of,
    placed,
    read_extent,
    verify_extent,
)
from statevisor.store.extent_write import ExtentWrite
from statevisor.store.files import Files
from statevisor.store.group_sync import GroupSync
from statevisor.store.room import NO_DISK, Room
from statevisor.store.scan import scan
from statevisor.store.settled import settled
from statevisor.store.shared import Shared
from statevisor.store.slabs import Place, Slab, SlabConfig, Slabs, place_of
from statevisor.store.workers import Workers, stop_process


class Written(NamedTuple):
    """An image whose bytes are on the disk, and whether they are synced."""

    ref: ImageRef
    durable: bool


class SlabImages:
    """The Images port on slab files. All but `digest` and `decode`: on one event loop."""

    def __init__(
        self, slabs: Slabs, *, incarnation: int, on_fsync_error: Callable[[str], NoReturn]
    ) -> None:
        self._slabs = slabs
        self.files = slabs.files  #: the file operations it works with
        self._workers = Workers(slabs.config.threads, on_fsync_error)
        self._syncs = dict[int, GroupSync]()  # by slab
        self._room = Room(slabs, self._workers, lambda slab_id: self._syncs.pop(slab_id, None))
        # An incarnation writes fewer than 2^32 extents, so that a later one's are always younger.
        self._generation = incarnation << 32
        self._readers = Counter[Place]()
        self._freed = set[Place]()  # to be free once their readers are done
        self._births = dict[tuple[int, int], int]()  # of places, by slab and offset

    @classmethod
    def open(
        cls,
        folder: Path,
        live: Iterable[ImageRef | Extent],
        *,
        incarnation: int,
        config: SlabConfig | None = None,
        files: Files | None = None,
        on_fsync_error: Callable[[str], NoReturn] = stop_process,
    ) -> SlabImages:
        """Open the folder; whatever `live` does not name is free. Blocks.

        `incarnation` is the one that `Catalog.claim` gave. `on_fsync_error` must not return.
        Raises: StatevisorError (two live images overlap), Unavailable (another process has the
        folder, or the disk fails).
        """
        slabs = Slabs.open(folder, live, config or SlabConfig(), files or Files())
        return cls(slabs, incarnation=incarnation, on_fsync_error=on_fsync_error)

    async def close(self) -> None:
        """Wait for the background and close the files; no call may be under way."""
        await self._room.close()
        await self._workers.close()
        self._slabs.close()

    # -- reading ---------------------------------------------------------------------------------
    @property
    def used_bytes(self) -> int:
        """Bytes of all extents, those being written included."""
        return self._slabs.used_bytes

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the slab files and of what they may still grow by."""
        return self._slabs.capacity_bytes

    def fits(self, row_bytes: int) -> bool:
        """Whether an image of such a row can be written within the budget and the disk."""
        return self._slabs.fits(extent_bytes(row_bytes + codec.ALIGN))

    async def get(
        self, ref: ImageRef, out: memoryview, reached: Reached | None = None
    ) -> ImageMeta:
        """Read the row into `out`, whose bytes are undefined if this raises.

        Every bit is checked by the checksums; `verify` and `export` work out the digest as well.
        `reached` is told, on another thread, how many bytes are there and not yet checked; 0: they
        are read anew. Raises: ImageCorrupt (names slab, offset and the damaged part),
        IncompatibleImage.
        """
        out = out.cast("B")
        with self._reading(ref) as slab:
            if slab.direct is not None and suits(out):
                with suppress(OSError):  # then as below, which says what is wrong
                    reading = DirectRead(ref, _head_bytes(ref, out), out, reached)
                    return await self._workers.run(
                        reading.run, self.files, slab.direct, self._workers.offer
                    )
                if reached is not None:
                    reached(0)
            return await self._workers.run(_read_row, self.files, slab.fd, ref, out)

    async def export(self, ref: ImageRef) -> bytes:
        """The image as one safetensors file. Raises: ImageCorrupt, IncompatibleImage."""
        with self._reading(ref) as slab:
            return await self._workers.run(_read_file, self.files, slab.fd, ref)

    async def verify(self, ref: ImageRef) -> ImageMeta:
        """Read an image and check every bit of it. Raises: ImageCorrupt, IncompatibleImage."""
        with self._reading(ref) as slab:
            return await self._workers.run(verify_extent, self.files, slab.fd, ref)

    def extents(self) -> frozenset[Extent]:
        """Everything that is in use, images being written included."""
        return self._slabs.extents()

    def birth(self, extent: Extent) -> int:
        """A number of what lies there; 0: it lay there when the folder was opened."""
        return self._births.get((extent.slab, extent.offset), 0)

    def decode(self, file: bytes, out: memoryview, expect: Fingerprints) -> ImageMeta:
        """Check an exported file and copy its row. Raises: ImageCorrupt, IncompatibleImage."""
        return codec.decode(file, out.cast("B"), expect)

    def digest(self, row: memoryview, meta: ImageMeta) -> str:
        """The digest that `put` of this state would give."""
        row = _checked(row, meta)
        return digest([memoryview(codec.encode_header(meta, row)), row])

    async def scan(self) -> tuple[ExtentHeader, ...]:
        """Every intact image on the disk, freed ones that still stand there included.

        Raises: Unavailable (the disk fails).
        """
        found: list[ExtentHeader] = []
        for slab in self._slabs.all():
            try:
                found += await self._workers.run(scan, self.files, slab.fd, slab.id)
            except OSError as error:
                raise Unavailable(f"{slab.path} cannot be read: {error.strerror}") from error
        return tuple(found)

    @contextmanager
    def _reading(self, ref: ImageRef) -> Iterator[Slab]:
        """Keep the extent from being given out again while it is read. Raises: ImageCorrupt."""
        check_ref(ref)
        place, slab = place_of(ref), self._slabs.find(ref.slab)
        if slab is None:
            raise ImageCorrupt(f"{at(ref)}: the slab file is missing")
        if not slab.room.uses(place.offset, place.length) or place in self._freed:
            raise ImageCorrupt(f"{at(ref)}: no image is kept there")
        self._readers[place] += 1
        try:
            yield slab
        finally:
            self._readers[place] -= 1
            if not self._readers[place]:
                del self._readers[place]
                if place in self._freed:
                    self._freed.remove(place)
                    self._give(place)

    # -- changing --------------------------------------------------------------------------------
    async def put(self, row: memoryview, meta: ImageMeta, filled: Filled | None = None) -> ImageRef:
        """Write one image; when it returns the bytes are durable and unnamed.

        `filled` waits for bytes of a row that is still being filled, on another thread. What is
        there must not change; a cancelled call too ends only when its writer has.
        Raises: Unavailable (the disk is full or fails), QuotaExceeded; what `filled` does.
        """
        row = _checked(row, meta)
        head_bytes = codec.encoded_bytes(meta)
        place = await self._room.take(extent_bytes(head_bytes + len(row)))
        self._generation += 1
        self._births[place.slab, place.offset] = self._generation
        try:
            writing = partial(
                ExtentWrite, place, row, head_bytes, meta, self._generation, filled=filled
            )
            written = await self._write(writing, place.slab, direct=suits(row))
            if not written.durable:
                await self._group(place.slab).wait()
        except OSError as error:
            self._give(place)
            raise Unavailable(f"cannot write an image: {error.strerror}", hint=NO_DISK) from error
        except BaseException:
            self._give(place)
            raise
        return written.ref

    def reclaim(self, extent: Extent) -> None:
        """Give back an extent that no row names and nobody will name. Raises: StatevisorError."""
        self._give(Place(slab=extent.slab, offset=extent.offset, length=extent.length))

    def free(self, ref: ImageRef) -> None:
        """Give the extent back, once its readers are done; call it after the freeing commit.

        Raises: StatevisorError if it is free already.
        """
        place = place_of(ref)
        if not self._readers[place]:
            self._give(place)
        elif place in self._freed:
            raise StatevisorError(f"{place} is freed twice")
        else:
            self._freed.add(place)

    def check(self) -> None:
        """Raise AssertionError unless every byte of every slab is free or used, once."""
        self._slabs.check()
        assert all(self._readers[place] for place in self._freed), "a freed extent was forgotten"

    async def _write(
        self, writing: Callable[..., ExtentWrite], slab_id: int, *, direct: bool
    ) -> Written:
        slab = self._slab(slab_id)
        if slab.direct is not None and direct:
            try:
                return await self._run(slab.id, slab.direct, writing(direct=True))
            except OSError as error:
                if error.errno != errno.EINVAL:  # this disk cannot be written so
                    raise
        return await self._run(slab.id, slab.fd, writing())

    async def _run(self, slab_id: int, fd: int, writing: ExtentWrite) -> Written:
        files, group, hashed = self.files, self._group(slab_id), Shared(writing.hashed)

        def write() -> Written:
            try:
                writing.write_row(files, fd)
                if writing.large and not hashed.done:  # else the disk would have nothing to do
                    group.lead()
            finally:
                hashed()  # the caller's memory is in use until then
            return Written(writing.write_headers(files, fd, hashed()), group.lead())

        # The disk first: whoever hashes keeps a processor from who only waits.
        written = self._workers.begin(write)
        if writing.large:  # below, another thread costs more than it gains
            self._workers.offer(hashed)
        return await settled(written)

    def _give(self, place: Place) -> None:
        self._births.pop((place.slab, place.offset), None)
        self._room.give(place)

    def _group(self, slab_id: int) -> GroupSync:
        group = self._syncs.get(slab_id)
        if group is None:
            slab, files, workers = self._slab(slab_id), self.files, self._workers
            group = GroupSync(lambda: workers.sync(files.sync, slab.fd, slab.path), workers.run)
            self._syncs[slab_id] = group
        return group

    def _slab(self, slab_id: int) -> Slab:
        slab = self._slabs.find(slab_id)
        assert slab is not None, "a slab with an extent in use is not removed"
        return slab


def _read_row(files: Files, fd: int, ref: ImageRef, out: memoryview) -> ImageMeta:
    head = memoryview(bytearray(_head_bytes(ref, out)))
    read_extent(files, fd, ref, [head, out], identity=False)
    with placed(ref):
        return meta_of(ref, head)


def _head_bytes(ref: ImageRef, out: memoryview) -> int:
    """Bytes of the image before its row. Raises: IncompatibleImage."""
    head_bytes = ref.nbytes - len(out)
    if head_bytes < codec.ALIGN or head_bytes % codec.ALIGN:
        text = f"{at(ref)}: the image does not hold a row of {len(out)} bytes"
        raise IncompatibleImage(text)
    return head_bytes


def _read_file(files: Files, fd: int, ref: ImageRef) -> bytes:
    file = bytearray(ref.nbytes)
    read_extent(files, fd, ref, [memoryview(file)])
    return bytes(file)


def _checked(row: memoryview, meta: ImageMeta) -> memoryview:
    """The row as bytes. Raises: ValueError."""
    row = row.cast("B")
    if len(row) != meta.layout.row_bytes:
        raise ValueError(f"a row of {len(row)} bytes, the layout has {meta.layout.row_bytes}")
    return row
