"""Hashing an image, and reading one extent. Slow: for worker threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from statevisor.hypervisor.errors import ImageCorrupt, IncompatibleImage
from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.records import ImageRef
from statevisor.store import codec
from statevisor.store.codec import ALIGN
from statevisor.store.digest import ImageHash, pieces
from statevisor.store.extent import (
    ExtentHeader,
    aligned,
    extent_bytes,
    header_bytes,
    unpack,
)
from statevisor.store.files import Files

_ZEROS: Final = memoryview(bytes(ALIGN))
#: A piece of an image, and the padding behind it.
Cut = tuple[list[memoryview], memoryview]


def hash_image(parts: Sequence[memoryview]) -> ImageHash:
    """Hash an image given in consecutive parts."""
    hashed = ImageHash()
    for piece, padding in padded(parts, _ZEROS):
        hashed.add(piece, padding)
    return hashed


def read_extent(
    files: Files, fd: int, ref: ImageRef, parts: Sequence[memoryview], *, identity: bool = True
) -> ExtentHeader:
    """Read an image into consecutive parts, `ref.nbytes` together, every bit checked.

    Without `identity` the checksums decide, and the digest is the one that the header states. The
    ref is one that `check_ref` let pass. What stands in the parts is undefined if it raises.
    Raises: ImageCorrupt, IncompatibleImage; both name slab and offset.
    """
    with placed(ref):
        try:
            header = _read_header(files, fd, ref)
            _read_image(files, fd, header, parts, identity)
        except OSError as error:
            raise ImageCorrupt(f"cannot be read: {error.strerror}") from error
    return header


@contextmanager
def placed(ref: ImageRef) -> Iterator[None]:
    """Let the errors of an extent say where it lies."""
    try:
        yield
    except ImageCorrupt as error:
        raise ImageCorrupt(f"{at(ref)}: {error.detail}") from error
    except IncompatibleImage as error:
        raise IncompatibleImage(f"{at(ref)}: {error.detail}", hint=error.hint) from error


def verify_extent(files: Files, fd: int, ref: ImageRef) -> ImageMeta:
    """Read an image that `check_ref` let pass, checking its bits and its header's sense.

    Raises: ImageCorrupt, IncompatibleImage.
    """
    image = memoryview(bytearray(ref.nbytes))
    header = read_extent(files, fd, ref, [image])
    meta = codec.read_header(image, len(image))
    if (meta.position, meta.absorbed) != (header.position, header.absorbed):
        raise ImageCorrupt(f"{at(ref)}: the extent's header speaks of another position")
    return meta


def check_ref(ref: ImageRef) -> None:
    """Raises: ImageCorrupt if no extent can be what the ref says."""
    if ref.nbytes < ALIGN or ref.length != extent_bytes(ref.nbytes):
        raise ImageCorrupt(
            f"{at(ref)}: an image of {ref.nbytes} bytes has no extent of {ref.length}"
        )


def at(ref: ImageRef) -> str:
    """Where an extent lies, for messages."""
    return f"slab {ref.slab}, offset {ref.offset}"


def checksums(cuts: Sequence[Cut]) -> list[bytes]:
    """What pieces of an image hash to."""
    hashed = ImageHash(identity=False)
    return [hashed.add(piece, padding) for piece, padding in cuts]


def compare(header: ExtentHeader, found: Sequence[bytes], first: int = 0) -> None:
    """Raises: ImageCorrupt unless the pieces from `first` on have the header's checksums."""
    for k, one in enumerate(found, first):
        if one != header.checksums[k]:
            raise ImageCorrupt(f"MiB {k} of {len(header.checksums)} is damaged")


def meta_of(ref: ImageRef, head: memoryview) -> ImageMeta:
    """What an image's own header says. Raises: ImageCorrupt, IncompatibleImage."""
    if codec.header_bytes(head) != len(head):
        raise IncompatibleImage(f"the image does not hold a row of {ref.nbytes - len(head)} bytes")
    return codec.read_header(head, ref.nbytes)


def _read_header(files: Files, fd: int, ref: ImageRef) -> ExtentHeader:
    files.expect(fd, ref.offset, ref.length)
    block = bytearray(header_bytes(ref.nbytes))
    got = files.read(fd, [memoryview(block)], ref.offset)
    return check_header(memoryview(block)[:got], ref)


def check_header(block: memoryview, ref: ImageRef) -> ExtentHeader:
    """What an extent's header says. Raises: ImageCorrupt, IncompatibleImage if not of this ref."""
    header = unpack(block)
    if header.ref != ref:
        raise ImageCorrupt(
            f"here lies {header.ref.digest} of slab {header.ref.slab}, "
            f"offset {header.ref.offset}, and not {ref.digest}"
        )
    return header


def _read_image(
    files: Files, fd: int, header: ExtentHeader, parts: Sequence[memoryview], identity: bool
) -> None:
    ref, hashed = header.ref, ImageHash(identity=identity)
    where = ref.offset + header_bytes(ref.nbytes)
    tail = memoryview(bytearray(aligned(ref.nbytes) - ref.nbytes))
    for k, (piece, padding) in enumerate(padded(parts, tail)):
        got = files.read(fd, [*piece, padding], where)
        where += got
        if got != sum(map(len, piece)) + len(padding):
            raise ImageCorrupt(f"MiB {k} of {len(header.checksums)} is cut off")
        if hashed.add(piece, padding) != header.checksums[k]:
            raise ImageCorrupt(f"MiB {k} of {len(header.checksums)} is damaged")
    if identity and hashed.digest != ref.digest:
        raise ImageCorrupt(f"the bytes have the digest {hashed.digest}, not {ref.digest}")


def padded(parts: Sequence[memoryview], zeros: memoryview) -> list[Cut]:
    """The pieces of an image, the last with the padding up to the next 4 KiB boundary."""
    nbytes = sum(map(len, parts))
    cuts = [(piece, zeros[:0]) for piece in pieces(parts)]
    cuts[-1] = (cuts[-1][0], zeros[: aligned(nbytes) - nbytes])
    return cuts
