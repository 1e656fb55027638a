"""Reading a large image past the page cache: one thread reads while another checks.

The disk writes straight into the caller's memory, so a state on its way to a slot is copied by
nobody; it is hashed a piece behind the disk. Needs memory that begins on a page.
"""

from __future__ import annotations

import ctypes
import mmap
from queue import SimpleQueue
from typing import Final, NamedTuple

from statevisor.hypervisor.errors import ImageCorrupt, IncompatibleImage
from statevisor.hypervisor.records import ImageRef
from statevisor.store.codec import ALIGN
from statevisor.store.digest import PIECE_BYTES, ImageHash, pieces
from statevisor.store.extent import ExtentHeader, header_bytes
from statevisor.store.extent_io import at, check_header
from statevisor.store.files import Files

#: Below this two threads cost more than they gain.
LEAST_BYTES: Final = 2 * PIECE_BYTES


def is_aligned(out: memoryview) -> bool:
    """Whether a disk can write straight into this memory."""
    return ctypes.addressof(ctypes.c_char.from_buffer(out)) % ALIGN == 0


class _Piece(NamedTuple):
    """What one read fetches, and how its bytes are hashed."""

    buffers: list[memoryview]
    nbytes: int
    hashed: list[memoryview]
    padding: memoryview


class DirectRead:
    """One image that is read into aligned memory; `read` and `check` on threads of their own."""

    def __init__(
        self, files: Files, fd: int, ref: ImageRef, head_bytes: int, out: memoryview
    ) -> None:
        """`fd` is open with O_DIRECT; the image is a header of `head_bytes` and the row, `out`."""
        self._files = files
        self._fd = fd
        self._ref = ref
        first = header_bytes(ref.nbytes)
        # one block for all that is not the row: the extent's header, the image's, the last page
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        block = memoryview(mmap.mmap(-1, first + head_bytes + ALIGN, flags=flags))
        self._header = block[:first]
        self.head = block[first : first + head_bytes]
        self._tail, self._out = block[first + head_bytes :], out
        self._pieces = self._plan()
        self._read = SimpleQueue[BaseException | None]()  # one entry a piece
        self._given_up = False

    def _plan(self) -> list[_Piece]:
        """One read for each piece; what a page shares with the zeros behind goes to the tail."""
        whole = len(self._out) // ALIGN * ALIGN
        rest = len(self._out) - whole
        plan = []
        for parts in pieces([self.head, self._out[:whole], self._tail[:rest]]):
            buffers = [part for part in parts if len(part) % ALIGN == 0]
            padding = self._tail[:0]
            if len(buffers) < len(parts):
                buffers, padding = [*buffers, self._tail], self._tail[rest:]
            plan.append(_Piece(buffers, sum(map(len, buffers)), parts, padding))
        return plan

    def read(self) -> None:
        """Fetch the pieces, one after the other, until all are there or `check` has given up."""
        where = self._ref.offset
        ahead = [self._header]  # comes with the first piece
        try:
            for piece in self._pieces:
                if self._given_up:
                    return
                want = piece.nbytes + sum(map(len, ahead))
                got = self._files.read(self._fd, [*ahead, *piece.buffers], where)
                where, ahead = where + want, []
                self._read.put(None if got == want else EOFError())
        except BaseException as error:  # goes on in `check`, which waits for it
            self._read.put(error)

    def check(self) -> ExtentHeader:
        """Check every bit of what `read` fetches; what stands in `out` is undefined if it raises.

        Raises: ImageCorrupt, IncompatibleImage; both name slab and offset. OSError, if this disk
        cannot be read so: then the page cache is to be asked, and has the last word.
        """
        try:
            return self._check()
        except ImageCorrupt as error:
            raise ImageCorrupt(f"{at(self._ref)}: {error.detail}") from error
        except IncompatibleImage as error:
            raise IncompatibleImage(f"{at(self._ref)}: {error.detail}", hint=error.hint) from error
        finally:
            self._given_up = True

    def _check(self) -> ExtentHeader:
        hashed, header = ImageHash(), None
        count = len(self._pieces)
        for k, piece in enumerate(self._pieces):
            failed = self._read.get()
            if isinstance(failed, EOFError):
                raise ImageCorrupt(f"MiB {k} of {count} is cut off")
            if failed is not None:
                raise failed
            if header is None:
                header = check_header(self._header, self._ref)
            if hashed.add(piece.hashed, piece.padding) != header.checksums[k]:
                raise ImageCorrupt(f"MiB {k} of {count} is damaged")
        if hashed.digest != self._ref.digest:
            raise ImageCorrupt(f"the bytes have the digest {hashed.digest}, not {self._ref.digest}")
        assert header is not None, "an image has at least one piece"
        last = len(self._out) % ALIGN
        self._out[len(self._out) - last :] = self._tail[:last]
        return header


def fits(ref: ImageRef, out: memoryview) -> bool:
    """Whether this image is one to be read past the page cache into that memory."""
    return ref.nbytes >= LEAST_BYTES and is_aligned(out)
