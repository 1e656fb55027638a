"""The Images port in memory: the twin of `SlabImages` for tests."""

from __future__ import annotations

import asyncio
import hashlib

from statevisor.hypervisor.errors import ImageCorrupt, QuotaExceeded, StatevisorError
from statevisor.hypervisor.filling import Filled, Reached
from statevisor.hypervisor.image_ports import Extent, ImageMeta
from statevisor.hypervisor.layout import Fingerprints
from statevisor.hypervisor.records import ImageRef
from statevisor.store import codec


class MemoryImages:
    """Images in a dictionary. What was put survives as long as this object."""

    def __init__(self, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        #: The files by offset; a test may damage one.
        self.files = dict[int, bytearray]()
        self._refs = dict[int, ImageRef]()
        self._next = 0

    @property
    def used_bytes(self) -> int:
        return sum(ref.length for ref in self._refs.values())

    def fits(self, row_bytes: int) -> bool:
        """Whether an image of such a row can be kept."""
        return self.used_bytes + _aligned(codec.ALIGN + row_bytes) <= self.capacity_bytes

    async def put(self, row: memoryview, meta: ImageMeta, filled: Filled | None = None) -> ImageRef:
        """Keep one image. Raises: QuotaExceeded; what `filled` does."""
        if filled is not None:
            await asyncio.to_thread(filled, len(row))
        if not self.fits(len(row.cast("B"))):
            raise QuotaExceeded(f"the images may use {self.capacity_bytes} bytes")
        file = _file(row, meta)
        ref = ImageRef(
            digest=_digest(file),
            nbytes=len(file),
            slab=1,
            offset=self._next,
            length=_aligned(len(file)),
            layout=meta.fingerprints.layout,
            weights=meta.fingerprints.weights,
            build=meta.fingerprints.build,
        )
        self._next += ref.length
        self.files[ref.offset], self._refs[ref.offset] = bytearray(file), ref
        return ref

    async def get(
        self, ref: ImageRef, out: memoryview, reached: Reached | None = None
    ) -> ImageMeta:
        """Read the row into `out`. Raises: ImageCorrupt, IncompatibleImage."""
        file, out = memoryview(await self.export(ref)), out.cast("B")
        meta = codec.read_header(file, len(file))
        codec.check_room(meta, len(out))
        out[:] = file[len(file) - len(out) :]
        return meta

    async def verify(self, ref: ImageRef) -> ImageMeta:
        """Read an image and check every bit of it. Raises: ImageCorrupt, IncompatibleImage."""
        file = memoryview(await self.export(ref))
        return codec.read_header(file, len(file))

    def extents(self) -> frozenset[Extent]:
        """Everything that is in use."""
        return frozenset(
            Extent(slab=ref.slab, offset=ref.offset, length=ref.length)
            for ref in self._refs.values()
        )

    def birth(self, extent: Extent) -> int:
        """Which image it is; no place is used twice here."""
        return extent.offset

    def reclaim(self, extent: Extent) -> None:
        """Forget an image that nobody names. Raises: StatevisorError."""
        ref = self._refs.get(extent.offset)
        if ref is None:
            raise StatevisorError(f"{extent} is not in use")
        self.free(ref)

    def digest(self, row: memoryview, meta: ImageMeta) -> str:
        """The digest that `put` of this state would give."""
        return _digest(_file(row, meta))

    async def export(self, ref: ImageRef) -> bytes:
        """The image as one safetensors file. Raises: ImageCorrupt."""
        if self._refs.get(ref.offset) != ref:
            raise ImageCorrupt(f"slab {ref.slab}, offset {ref.offset}: no such image is kept there")
        file = bytes(self.files[ref.offset])
        if _digest(file) != ref.digest:
            raise ImageCorrupt(f"slab {ref.slab}, offset {ref.offset}: the bytes are damaged")
        return file

    def decode(self, file: bytes, out: memoryview, expect: Fingerprints) -> ImageMeta:
        """Check an exported file and copy its row. Raises: ImageCorrupt, IncompatibleImage."""
        return codec.decode(file, out.cast("B"), expect)

    def free(self, ref: ImageRef) -> None:
        """Forget an image. Raises: StatevisorError if it is free already."""
        if self._refs.get(ref.offset) != ref:
            raise StatevisorError(f"{ref.digest} is not in use: freed twice?")
        del self._refs[ref.offset], self.files[ref.offset]

    def check(self) -> None:
        """Raise AssertionError unless every image has its bytes and its own room."""
        assert self.files.keys() == self._refs.keys(), "images and bytes do not match"
        end = 0
        for offset, ref in sorted(self._refs.items()):
            assert offset == ref.offset >= end, f"images overlap at {offset}"
            end = offset + ref.length


def _file(row: memoryview, meta: ImageMeta) -> bytes:
    row = row.cast("B")
    if len(row) != meta.layout.row_bytes:
        raise ValueError(f"a row of {len(row)} bytes, the layout has {meta.layout.row_bytes}")
    return codec.encode_header(meta, row) + bytes(row)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // codec.ALIGN) * codec.ALIGN


def _digest(file: bytes) -> str:
    return "blake2b:" + hashlib.blake2b(file, digest_size=32).hexdigest()
