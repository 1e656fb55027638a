"""Finding images by what stands on the disk, without the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from statevisor.hypervisor.errors import ImageCorrupt, IncompatibleImage
from statevisor.store.codec import ALIGN
from statevisor.store.extent import ExtentHeader, begins_extent, claimed_header_bytes, unpack
from statevisor.store.extent_io import read_extent
from statevisor.store.files import Files

_CHUNK: Final = 1 << 20
#: A header of this length would be that of an image of a TiB.
_MAX_HEADER: Final = 16 << 20


def scan(files: Files, fd: int, slab_id: int) -> tuple[ExtentHeader, ...]:
    """The whole, intact images of a slab, in order of their offset.

    Freed images whose bytes have not been overwritten are among them: only the catalog knows what
    is free. Slow: reads the slab and every image in it once more. Raises: OSError.
    """
    size = files.size(fd)
    found = [
        header
        for header in _headers(files, fd)
        if header.ref.slab == slab_id and header.ref.offset + header.ref.length <= size
    ]
    return tuple(header for header in youngest(found) if _intact(files, fd, header))


def youngest(found: Iterable[ExtentHeader]) -> list[ExtentHeader]:
    """Of headers of one slab whose extents overlap only the youngest, in order of their offset."""
    kept: list[ExtentHeader] = []
    for header in sorted(found, key=lambda header: -header.generation):
        start, stop = header.ref.offset, header.ref.offset + header.ref.length
        if all(
            other.ref.offset >= stop or other.ref.offset + other.ref.length <= start
            for other in kept
        ):
            kept.append(header)
    return sorted(kept, key=lambda header: header.ref.offset)


def _headers(files: Files, fd: int) -> Iterator[ExtentHeader]:
    # One that names another place is no matter: what stands at that place is read and compared.
    chunk = memoryview(bytearray(_CHUNK))
    at = 0
    while got := files.read(fd, [chunk], at):
        for start in range(0, got - ALIGN + 1, ALIGN):
            block = chunk[start : start + ALIGN]
            if begins_extent(block):
                header = _header(files, fd, at + start, claimed_header_bytes(block))
                if header is not None:
                    yield header
        at += got


def _header(files: Files, fd: int, offset: int, size: int) -> ExtentHeader | None:
    if size > _MAX_HEADER:
        return None
    block = memoryview(bytearray(size))
    try:
        return unpack(block[: files.read(fd, [block], offset)])
    except (ImageCorrupt, IncompatibleImage):
        return None


def _intact(files: Files, fd: int, header: ExtentHeader) -> bool:
    try:
        read_extent(files, fd, header.ref, [memoryview(bytearray(header.ref.nbytes))])
    except ImageCorrupt:
        return False
    return True
