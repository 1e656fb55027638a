"""Reading an image past the page cache, straight into the memory where its state is wanted.

A state on its way to a slot is then copied by nobody. Needs memory that begins on a page.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

from statevisor.hypervisor.errors import ImageCorrupt, IncompatibleImage
from statevisor.hypervisor.records import ImageRef
from statevisor.store.codec import ALIGN
from statevisor.store.digest import pieces
from statevisor.store.extent import ExtentHeader, header_bytes
from statevisor.store.extent_io import at, check_header, check_pieces
from statevisor.store.files import Files

#: Smaller ones are better kept in the page cache.
LEAST_BYTES: Final = 256 << 10
#: At once: every wait for a disk is one for the processor too, and the checks take no time.
RUN_BYTES: Final = 16 << 20


def suits(row: memoryview) -> bool:
    """Whether the row in this memory is one to pass the page cache by, on either way."""
    return len(row) >= LEAST_BYTES and not row.readonly and is_aligned(row)


def is_aligned(memory: memoryview) -> bool:
    """Whether a disk can reach this memory, which is writable, by itself."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)) % ALIGN == 0


class DirectRead:
    """One image to be read into aligned memory. Slow: for a worker thread."""

    def __init__(self, ref: ImageRef, head_bytes: int, out: memoryview) -> None:
        """The image is a header of `head_bytes` and the row, which goes to `out`."""
        self._ref = ref
        self._out = out
        first = header_bytes(ref.nbytes)
        # one block for all that is not the row: the extent's header, the image's, the last page
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        block = memoryview(mmap.mmap(-1, first + head_bytes + ALIGN, flags=flags))
        self._header = block[:first]
        self.head = block[first : first + head_bytes]
        self._tail = block[first + head_bytes :]

    def run(self, files: Files, fd: int) -> ExtentHeader:
        """Read and check every bit; what stands in `out` is undefined if it raises.

        `fd` is open with O_DIRECT. Raises: ImageCorrupt, IncompatibleImage; both name slab and
        offset. OSError, if this disk cannot be read so: the page cache then has the last word.
        """
        try:
            return self._run(files, fd)
        except ImageCorrupt as error:
            raise ImageCorrupt(f"{at(self._ref)}: {error.detail}") from error
        except IncompatibleImage as error:
            raise IncompatibleImage(f"{at(self._ref)}: {error.detail}", hint=error.hint) from error

    def _run(self, files: Files, fd: int) -> ExtentHeader:
        whole = len(self._out) // ALIGN * ALIGN
        rest = len(self._out) - whole  # shares its page with zeros: it comes by way of the tail
        tail = [self._tail] if rest else []
        self._read(files, fd, [self._header, self.head, self._out[:whole], *tail])
        header = check_header(self._header, self._ref)
        check_pieces(header, [self.head, self._out[:whole], self._tail[:rest]], self._tail[rest:])
        self._out[whole:] = self._tail[:rest]
        return header

    def _read(self, files: Files, fd: int, buffers: list[memoryview]) -> None:
        where = self._ref.offset
        for run in pieces(buffers, RUN_BYTES):
            got = files.read(fd, run, where)
            where += got
            if got != sum(map(len, run)):
                raise ImageCorrupt(f"cut off behind {where - self._ref.offset} bytes")
