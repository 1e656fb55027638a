"""Reading an image past the page cache, straight into the memory where its state is wanted.

A state on its way to a slot is then copied by nobody. Needs memory that begins on a page. It is
read in runs: what a run brought is checked, on another thread if one is free, while the next comes.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from statevisor.hypervisor.errors import ImageCorrupt
from statevisor.hypervisor.filling import Reached
from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.records import ImageRef
from statevisor.store.codec import ALIGN
from statevisor.store.digest import PIECE_BYTES, pieces
from statevisor.store.extent import ExtentHeader, header_bytes
from statevisor.store.extent_io import (
    Cut,
    check_header,
    checksums,
    compare,
    meta_of,
    padded,
    placed,
)
from statevisor.store.files import Files
from statevisor.store.shared import Shared

#: Smaller ones are better kept in the page cache.
LEAST_BYTES: Final = 256 << 10
#: Pieces of a run: half of an image, but every wait for a disk is one for the processor too.
LEAST_RUN: Final = 2
MOST_RUN: Final = 16

Offer = Callable[[Callable[[], object]], object]


def suits(row: memoryview) -> bool:
    """Whether the row in this memory is one to pass the page cache by, on either way."""
    return len(row) >= LEAST_BYTES and not row.readonly and is_aligned(row)


def is_aligned(memory: memoryview) -> bool:
    """Whether a disk can reach this memory, which is writable, by itself."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)) % ALIGN == 0


class _Begun(NamedTuple):
    """What the first run has brought."""

    header: ExtentHeader
    meta: ImageMeta


class DirectRead:
    """One image to be read into aligned memory. Slow: for a worker thread."""

    def __init__(
        self, ref: ImageRef, head_bytes: int, out: memoryview, reached: Reached | None = None
    ) -> None:
        """The image is a header of `head_bytes` and the row, which goes to `out`.

        `reached` is told how many bytes of the row are there, before they are checked.
        """
        self._ref = ref
        self._out = out
        self._reached = reached
        first = header_bytes(ref.nbytes)
        # one block for all that is not the row: the extent's header, the image's, the last page
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        block = memoryview(mmap.mmap(-1, first + head_bytes + ALIGN, flags=flags))
        self._header = block[:first]
        self._head = block[first : first + head_bytes]
        self._tail = block[first + head_bytes :]

    def run(self, files: Files, fd: int, offer: Offer = lambda work: None) -> ImageMeta:
        """Read and check every bit; what stands in `out` is undefined if it raises.

        `fd` is open with O_DIRECT; what is offered may be done on another thread. Raises:
        ImageCorrupt, IncompatibleImage; both name slab and offset. OSError, if this disk cannot be
        read so: the page cache then has the last word.
        """
        with placed(self._ref):
            return self._run(files, fd, offer)

    def _run(self, files: Files, fd: int, offer: Offer) -> ImageMeta:
        whole = len(self._out) // ALIGN * ALIGN
        rest = len(self._out) - whole  # shares its page with zeros: it comes by way of the tail
        row, tail = self._out[:whole], self._tail[: ALIGN if rest else 0]
        cuts = padded([self._head, row, self._tail[:rest]], self._tail[rest:])
        size = min(max(-(-len(cuts) // 2), LEAST_RUN), MOST_RUN)
        first, *later = pieces([self._head, row, tail], size * PIECE_BYTES)

        where = self._read(files, fd, [self._header, *first], self._ref.offset)
        begun = Shared(partial(self._begin, cuts[:size]))
        found: list[Shared[list[bytes]]] = []
        for k, run in enumerate(later, 1):
            # If this raises, a check may go on: it reads bytes that mean nothing, and is not asked.
            offer(found[-1] if found else begun)
            where = self._read(files, fd, run, where)
            found.append(Shared(partial(checksums, cuts[k * size : (k + 1) * size])))
        last = [one() for one in found[::-1]][::-1]  # the youngest is the least begun
        header, meta = begun()
        for k, sums in enumerate(last, 1):
            compare(header, sums, k * size)
        self._out[whole:] = self._tail[:rest]
        return meta

    def _begin(self, cuts: list[Cut]) -> _Begun:
        header = check_header(self._header, self._ref)
        compare(header, checksums(cuts))
        return _Begun(header, meta_of(self._ref, self._head))

    def _read(self, files: Files, fd: int, run: list[memoryview], where: int) -> int:
        got = files.read(fd, run, where)
        if got != sum(map(len, run)):
            raise ImageCorrupt(f"cut off behind {where + got - self._ref.offset} bytes")
        if self._reached is not None:
            row_at = self._ref.offset + len(self._header) + len(self._head)
            whole = len(self._out) // ALIGN * ALIGN  # the rest goes to its place at the end
            self._reached(min(where + got - row_at, whole))
        return where + got
