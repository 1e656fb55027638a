"""One extent: a self-describing header, an image, and zeros up to the next 4 KiB boundary.

    | preamble 16 | fields | digest | 3 fingerprints | checksums, 16 per MiB | 0... | crc |
    | the image, byte for byte as exported                                   | 0...       |

The header says where it belongs (slab, offset), so a block that a disk returns from the wrong place
is found, and all that an index needs, so that one can be rebuilt without the catalog. `generation`
grows with every extent written into a folder: of two headers whose extents overlap, the higher one
is the younger.

Every bit of an extent is checked: the header by its crc, unused bytes included, the image by its
checksums and its digest. The zeros behind the image count with its last checksum: they carry no
state, but a bit that changed there tells of a medium that loses bits, so it is damage like any
other.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from statevisor.hypervisor.errors import ImageCorrupt, IncompatibleImage
from statevisor.hypervisor.records import ImageRef
from statevisor.store.codec import ALIGN, MAX_FINGERPRINT_BYTES
from statevisor.store.digest import PIECE_BYTES, PREFIX

MAGIC: Final = b"svextent"
#: Any change of the header needs a higher number here.
EXTENT_VERSION: Final = 1

#: magic, version, crc of these two. Fixed for ever, so that a damaged version is never taken
#: for another one.
_PREAMBLE: Final = struct.Struct("<8sII")
#: header bytes, checksums, generation, slab, offset, length, image bytes, position, absorbed,
#: digest
_FIELDS: Final = struct.Struct("<IIQQQQQQQ32s")
_TEXT: Final = struct.Struct(f"<H{MAX_FINGERPRINT_BYTES}s")
_CRC: Final = struct.Struct("<I")
_CHECKSUM_BYTES: Final = 16
_CHECKSUMS_AT: Final = _PREAMBLE.size + _FIELDS.size + 3 * _TEXT.size


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtentHeader:
    """What an extent says of itself."""

    generation: int
    ref: ImageRef  #: the index entry: digest, place, sizes, fingerprints
    position: int  #: length of the transcript the image stands for
    absorbed: int
    checksums: tuple[bytes, ...]  #: xxh3-128 of each MiB of the image, zeros included

    def pack(self) -> bytes:
        """The header's bytes; a multiple of 4 KiB, one for images up to 200 MiB."""
        ref = self.ref
        size = header_bytes(ref.nbytes)
        start = _PREAMBLE.pack(MAGIC, EXTENT_VERSION, _preamble_crc(EXTENT_VERSION))
        fields = _FIELDS.pack(
            size,
            len(self.checksums),
            self.generation,
            ref.slab,
            ref.offset,
            ref.length,
            ref.nbytes,
            self.position,
            self.absorbed,
            bytes.fromhex(ref.digest.removeprefix(PREFIX)),
        )
        texts = b"".join(_pack_text(text) for text in (ref.layout, ref.weights, ref.build))
        body = (start + fields + texts + b"".join(self.checksums)).ljust(size - _CRC.size, b"\0")
        return body + _CRC.pack(zlib.crc32(body))


def header_bytes(nbytes: int) -> int:
    """Length of the header of an extent whose image has `nbytes`."""
    return aligned(_CHECKSUMS_AT + _CHECKSUM_BYTES * _piece_count(nbytes) + _CRC.size)


def extent_bytes(nbytes: int) -> int:
    """Length of the whole extent of an image of `nbytes`."""
    return header_bytes(nbytes) + aligned(nbytes)


def aligned(nbytes: int) -> int:
    """The next multiple of 4 KiB."""
    return -(-nbytes // ALIGN) * ALIGN


def begins_extent(block: bytes | memoryview) -> bool:
    """Whether these bytes look like the start of an extent's header."""
    return bytes(block[: len(MAGIC)]) == MAGIC


def claimed_header_bytes(block: bytes | memoryview) -> int:
    """The header length that a header's first block names; not checked yet, at least one block."""
    size: int = _FIELDS.unpack_from(block, _PREAMBLE.size)[0]
    return max(size, ALIGN)


def unpack(header: bytes | memoryview) -> ExtentHeader:
    """Read a whole header.

    Raises: ImageCorrupt (the message says what is wrong), IncompatibleImage (an intact header of
    another version of this format).
    """
    view = memoryview(header)
    if len(view) < ALIGN or not begins_extent(view):
        raise ImageCorrupt("no extent header stands here")
    _, version, crc = _PREAMBLE.unpack_from(view)
    if crc != _preamble_crc(version):
        raise ImageCorrupt("the extent header's preamble is damaged")
    if version != EXTENT_VERSION:
        raise IncompatibleImage(
            f"extent format {version}: this server reads {EXTENT_VERSION}",
            hint="Export the image with the server that wrote it and import it here.",
        )
    if zlib.crc32(view[: -_CRC.size]) != _CRC.unpack_from(view, len(view) - _CRC.size)[0]:
        raise ImageCorrupt("the extent header is damaged")
    return _unpack_fields(view)


def _unpack_fields(view: memoryview) -> ExtentHeader:
    (size, count, generation, slab, offset, length, nbytes, position, absorbed, digest) = (
        _FIELDS.unpack_from(view, _PREAMBLE.size)
    )
    # The crc held, so a contradiction here is a writer's fault or a forgery, not a damaged medium.
    if (size, count, length) != (len(view), _piece_count(nbytes), extent_bytes(nbytes)):
        raise ImageCorrupt("the extent header contradicts itself")
    if size != header_bytes(nbytes) or nbytes < ALIGN:
        raise ImageCorrupt("the extent header contradicts itself")
    at = _PREAMBLE.size + _FIELDS.size
    layout, weights, build = (_unpack_text(view, at + k * _TEXT.size) for k in range(3))
    return ExtentHeader(
        generation=generation,
        ref=ImageRef(
            digest=PREFIX + digest.hex(),
            nbytes=nbytes,
            slab=slab,
            offset=offset,
            length=length,
            layout=layout,
            weights=weights,
            build=build,
        ),
        position=position,
        absorbed=absorbed,
        checksums=tuple(
            bytes(view[k : k + _CHECKSUM_BYTES])
            for k in range(_CHECKSUMS_AT, _CHECKSUMS_AT + count * _CHECKSUM_BYTES, _CHECKSUM_BYTES)
        ),
    )


def _piece_count(nbytes: int) -> int:
    return -(-nbytes // PIECE_BYTES)


def _preamble_crc(version: int) -> int:
    return zlib.crc32(MAGIC + version.to_bytes(4, "little"))


def _pack_text(text: str) -> bytes:
    raw = text.encode("ascii")
    return _TEXT.pack(len(raw), raw)


def _unpack_text(view: memoryview, at: int) -> str:
    size, raw = _TEXT.unpack_from(view, at)
    try:
        text: str = raw[:size].decode("ascii")
    except UnicodeDecodeError as error:
        raise ImageCorrupt("a fingerprint in the extent header is not text") from error
    return text
