"""Writing one extent: the row first, since its hash is in the headers that stand before it.

A row in memory that begins on a page can pass the page cache by. Nobody copies it then, and the
disk has it when the write returns: the sync behind it asks only for what the disk itself caches.

A row may still be on its way from a slot: what has come is written while the rest comes.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Final, NamedTuple

from statevisor.hypervisor.filling import Filled
from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.records import ImageRef
from statevisor.store import codec
from statevisor.store.codec import ALIGN
from statevisor.store.digest import PIECE_BYTES, ImageHash
from statevisor.store.extent import ExtentHeader, header_bytes
from statevisor.store.extent_io import hash_image
from statevisor.store.files import Files
from statevisor.store.slabs import Place

#: Into the page cache at a time: large enough for the disk's full speed, small enough to begin
#: early.
RUN_BYTES: Final = 2 << 20
#: Past the page cache: every wait for a disk is one for the processor too.
DIRECT_RUN_BYTES: Final = 16 << 20


class Hashed(NamedTuple):
    """What stands before a row in its image, and the hash of both."""

    head: bytes | memoryview
    image: ImageHash


class ExtentWrite:
    """One image to be written. Slow: for a worker thread."""

    def __init__(
        self,
        place: Place,
        row: memoryview,
        head_bytes: int,
        meta: ImageMeta,
        generation: int,
        *,
        filled: Filled | None = None,
        direct: bool = False,
    ) -> None:
        """The image is a header of `head_bytes` and the row; `direct`: past the page cache.

        `filled` waits for bytes of the row; None: all are there.
        """
        self._place = place
        self._row = row
        self._meta = meta
        self._generation = generation
        self._filled = filled or (lambda least: len(row))
        self._direct = direct
        self._nbytes = head_bytes + len(row)
        first = header_bytes(self._nbytes)
        # one block for all that is not the row: the extent's header, the image's, the last page
        block = _memory(first + head_bytes + ALIGN, aligned=direct)
        self._heads = block[: first + head_bytes]
        self._head = self._heads[first:]
        self._tail = block[first + head_bytes :]

    @property
    def large(self) -> bool:
        """Whether it pays to hash it on another thread than the one that writes."""
        return self._place.length > PIECE_BYTES

    def hashed(self) -> Hashed:
        """The header of the image, and the hash of both. Raises what `filled` does."""
        self._filled(len(self._row))
        head = codec.encode_header(self._meta, self._row)
        return Hashed(head, hash_image([memoryview(head), self._row]))

    def run(self, files: Files, fd: int, hashed: Callable[[], Hashed]) -> ImageRef:
        """Write the row and then both headers, not synced. Raises: OSError."""
        self.write_row(files, fd)
        return self.write_headers(files, fd, hashed())

    def write_row(self, files: Files, fd: int) -> None:
        """Write in runs that the disk begins with at once, so that it works while others hash.

        Raises: OSError, and what `filled` does.
        """
        size, done = len(self._row), 0
        start = self._place.offset + len(self._heads)
        most = DIRECT_RUN_BYTES if self._direct else RUN_BYTES
        while done < size:
            there = self._filled(min(done + ALIGN, size))
            whole = there if there == size else there // ALIGN * ALIGN
            stop = min(whole, done + most)
            files.write(fd, self._cut(done, stop), start + done)
            if not self._direct and size > most:
                files.begin_sync(fd, start + done, stop - done)
            done = stop

    def _cut(self, start: int, stop: int) -> list[memoryview]:
        """A run of the row, in whole pages: the last bytes share theirs with zeros, in the tail."""
        rest = stop % ALIGN
        if not rest:
            return [self._row[start:stop]]
        self._tail[:rest] = self._row[stop - rest : stop]
        return [part for part in (self._row[start : stop - rest], self._tail) if part]

    def write_headers(self, files: Files, fd: int, hashed: Hashed) -> ImageRef:
        """Write what makes the row an image, once the row is written. Raises: OSError."""
        header = self._describe(hashed.image)
        self._heads[: -len(self._head)] = header.pack()
        self._head[:] = hashed.head
        files.write(fd, [self._heads], self._place.offset)
        return header.ref

    def _describe(self, hashed: ImageHash) -> ExtentHeader:
        place, prints = self._place, self._meta.fingerprints
        return ExtentHeader(
            generation=self._generation,
            ref=ImageRef(
                digest=hashed.digest,
                nbytes=self._nbytes,
                slab=place.slab,
                offset=place.offset,
                length=place.length,
                layout=prints.layout,
                weights=prints.weights,
                build=prints.build,
            ),
            position=self._meta.position,
            absorbed=self._meta.absorbed,
            checksums=tuple(hashed.checksums),
        )


def _memory(nbytes: int, *, aligned: bool) -> memoryview:
    if not aligned:
        return memoryview(bytearray(nbytes))
    return memoryview(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
