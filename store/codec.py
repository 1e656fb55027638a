"""The file form of one image: a safetensors file that is the same bytes for the same state.

The data section is the row itself, the families in layout order without gaps. The JSON header is
padded with spaces, so that the tensors start on a 4 KiB boundary, and it is *canonical*: a file is
accepted only if writing what it says gives its header again, bit for bit. So an image that was
exported and imported keeps its digest, and nothing can hide in one. The header holds a checksum of
itself and of the row: a file finds its own damage, wherever it has been.

Files are untrusted. Reading raises ImageCorrupt (not an image, or damaged) or IncompatibleImage
(another layout, other weights, another version of this format) and nothing else.

Format: https://huggingface.co/docs/safetensors/index#format (8 bytes header length, header, data).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from xxhash import xxh3_128

from statevisor.hypervisor.errors import ImageCorrupt, IncompatibleImage
from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.layout import DTYPE_BYTES, Fingerprints, Kind, Layout, StateFamily

ALIGN: Final = 4096
#: Any change of the header's keys or their meaning needs a higher number here.
IMAGE_VERSION: Final = 1

MAX_HEADER_BYTES: Final = 100_000_000  # what the safetensors library accepts
MAX_FAMILIES: Final = 256
MAX_AXES: Final = 8
MAX_FINGERPRINT_BYTES: Final = 254
MAX_TOKEN: Final = 2**31
MAX_POSITION: Final = 2**53

_KINDS: Final[Mapping[str, Kind]] = {"fixed": "fixed", "ring": "ring", "paged": "paged"}
_METADATA: Final = "__metadata__"  # reserved by safetensors: no tensor has this name
_CHECK: Final = "check"
_KEYS: Final = frozenset(
    (
        "absorbed",
        "build",
        _CHECK,
        "image_version",
        "kinds",
        "layout",
        "pending",
        "position",
        "weights",
    )
)
_NO_CHECK: Final = "0" * 32  #: what stands for the checksum while it is worked out
_HEX: Final = re.compile(r"[0-9a-f]{32}\Z")
_NUMBER: Final = re.compile(r"(0|[1-9][0-9]{0,15})\Z")
_FAMILY_NAME: Final = re.compile(r"[!-~]{1,128}\Z")
_FINGERPRINT: Final = re.compile(rf"[ -~]{{1,{MAX_FINGERPRINT_BYTES}}}\Z")


def encode_header(meta: ImageMeta, row: bytes | memoryview) -> bytes:
    """Everything of the file that stands before the row; a multiple of 4 KiB long.

    Raises: ValueError if the meta contradicts itself.
    """
    fault = _fault(meta)
    if fault is not None:
        raise ValueError(fault)
    return _padded(_header_text(meta, _checksum(meta, row)), meta)


def encoded_bytes(meta: ImageMeta) -> int:
    """How long `encode_header` will be. Raises: ValueError if the meta contradicts itself."""
    fault = _fault(meta)
    if fault is not None:
        raise ValueError(fault)
    numbers = (meta.absorbed, meta.position, *meta.pending)
    text = _bare_bytes(meta.layout, meta.fingerprints)
    text += sum(len(str(number)) for number in numbers) + max(len(meta.pending) - 1, 0)
    return 8 + text + _padding(text, meta)


@lru_cache(maxsize=16)
def _bare_bytes(layout: Layout, prints: Fingerprints) -> int:
    """Bytes of a header's text without its numbers."""
    bare = ImageMeta(layout=layout, fingerprints=prints, position=0, absorbed=0, pending=())
    return len(_header_text(bare, _NO_CHECK)) - len("00")


def _padded(text: bytes, meta: ImageMeta) -> bytes:
    padding = _padding(len(text), meta)
    return (len(text) + padding).to_bytes(8, "little") + text + b" " * padding


def _padding(text_bytes: int, meta: ImageMeta) -> int:
    padding = -(8 + text_bytes) % ALIGN
    if text_bytes + padding > MAX_HEADER_BYTES:
        raise ValueError(f"{len(meta.pending)} pending tokens do not fit in an image header")
    return padding


def decode(file: bytes | memoryview, out: memoryview, expect: Fingerprints) -> ImageMeta:
    """Check a whole file and copy its row into `out`; `out` is not touched if it raises.

    The build may differ from `expect`: a clean image loads under any build of its layout and
    weights. Raises: ImageCorrupt, IncompatibleImage.
    """
    view = memoryview(file).cast("B")
    meta = read_header(view, len(view))
    check_fingerprints(meta, expect)
    check_room(meta, len(out))
    row = view[len(view) - len(out) :]
    if _checksum(meta, row) != _stated_check(view):
        raise ImageCorrupt("the checksum in the file's header is not that of its bytes")
    out[:] = row
    return meta


def read_header(head: memoryview, file_bytes: int) -> ImageMeta:
    """What the header of a file of `file_bytes` says; `head` holds at least the whole header.

    The checksum is not compared: whoever has the row compares it, or a digest of the whole.
    Raises: ImageCorrupt, IncompatibleImage (a header of another version).
    """
    size = header_bytes(head)
    if size > len(head) or size > file_bytes:
        raise ImageCorrupt(f"the header claims {size} bytes of {file_bytes}")
    text = bytes(head[8:size])
    header = _parse(text)
    meta = _meta(header)
    fault = _fault(meta)
    if fault is not None:
        raise ImageCorrupt(fault)
    if file_bytes - size != meta.layout.row_bytes:
        raise ImageCorrupt(
            f"{file_bytes - size} bytes of tensors where the header says {meta.layout.row_bytes}"
        )
    if _padded(_header_text(meta, _stated_check(head)), meta) != bytes(head[:size]):
        raise ImageCorrupt("the header is not in canonical form")
    return meta


def header_bytes(head: memoryview) -> int:
    """Length of the header with its length field, as the file's first 8 bytes say.

    Raises: ImageCorrupt.
    """
    if len(head) < 8:
        raise ImageCorrupt(f"{len(head)} bytes are no image")
    size = int.from_bytes(head[:8], "little")
    if not 2 <= size <= MAX_HEADER_BYTES or (8 + size) % ALIGN:
        raise ImageCorrupt(f"the header length {size} is out of range or not aligned")
    return 8 + size


def check_fingerprints(meta: ImageMeta, expect: Fingerprints) -> None:
    """Raises: IncompatibleImage unless layout and weights are the expected ones."""
    for what in ("layout", "weights"):
        found, wanted = getattr(meta.fingerprints, what), getattr(expect, what)
        if found != wanted:
            raise IncompatibleImage(f"the image has {what} {found}, the guest has {wanted}")


def check_room(meta: ImageMeta, room: int) -> None:
    """Raises: IncompatibleImage unless a row of this image is exactly `room` bytes."""
    if meta.layout.row_bytes != room:
        raise IncompatibleImage(
            f"the image holds a row of {meta.layout.row_bytes} bytes, the guest's has {room}"
        )


def _checksum(meta: ImageMeta, row: bytes | memoryview) -> str:
    """xxh3-128 of the header, with nothing in the place of the checksum, and of the row."""
    check = xxh3_128(_header_text(meta, _NO_CHECK))
    check.update(row)
    return check.hexdigest()


def _stated_check(head: memoryview) -> str:
    """The checksum that a parsed header states. Raises: ImageCorrupt."""
    check: str = _parse(bytes(head[8 : header_bytes(head)]))[_METADATA][_CHECK]
    if not _HEX.match(check):
        raise ImageCorrupt(f"{check[:40]!r} is not a checksum")
    return check


def _header_text(meta: ImageMeta, check: str) -> bytes:
    prints = meta.fingerprints
    header: dict[str, Any] = {
        _METADATA: {
            "absorbed": str(meta.absorbed),
            "build": prints.build,
            _CHECK: check,
            "image_version": str(IMAGE_VERSION),
            "kinds": ",".join(family.kind for family in meta.layout.families),
            "layout": prints.layout,
            "pending": ",".join(map(str, meta.pending)),
            "position": str(meta.position),
            "weights": prints.weights,
        }
    }
    start = 0
    for family in meta.layout.families:
        stop = start + family.nbytes
        header[family.name] = {
            "dtype": family.dtype,
            "shape": list(family.shape),
            "data_offsets": [start, stop],
        }
        start = stop
    return json.dumps(header, separators=(",", ":")).encode("ascii")


def _parse(text: bytes) -> Mapping[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ImageCorrupt("the header is not JSON") from error
    if type(header) is not dict:
        raise ImageCorrupt("the header is not a JSON object")
    return header


def _meta(header: Mapping[str, Any]) -> ImageMeta:
    words = header.get(_METADATA)
    if type(words) is not dict or type(words.get("image_version")) is not str:
        raise ImageCorrupt("a safetensors file, but not an image of a state")
    if words["image_version"] != str(IMAGE_VERSION):
        raise IncompatibleImage(
            f"image format {words['image_version'][:20]!r}: this server reads {IMAGE_VERSION}"
        )
    if words.keys() != _KEYS or any(type(word) is not str for word in words.values()):
        raise ImageCorrupt("the metadata has missing, unknown or malformed keys")
    return ImageMeta(
        layout=_layout(header, words["kinds"].split(",")),
        fingerprints=Fingerprints(
            layout=words["layout"], weights=words["weights"], build=words["build"]
        ),
        position=_number(words["position"]),
        absorbed=_number(words["absorbed"]),
        pending=tuple(map(_number, words["pending"].split(","))) if words["pending"] else (),
    )


def _layout(header: Mapping[str, Any], kinds: Sequence[str]) -> Layout:
    names = [name for name in header if name != _METADATA]
    if not 1 <= len(names) <= MAX_FAMILIES or len(names) != len(kinds):
        raise ImageCorrupt(f"{len(names)} families, {len(kinds)} kinds")
    try:
        # Offsets are not read: they follow from the shapes, and the canonical form compares them.
        return Layout(
            families=tuple(
                _family(name, header[name], kind) for name, kind in zip(names, kinds, strict=True)
            )
        )
    except ValueError as error:
        raise ImageCorrupt(str(error)[:200]) from error


def _family(name: str, entry: Any, kind: str) -> StateFamily:
    shape, dtype = (entry.get("shape"), entry.get("dtype")) if type(entry) is dict else (None, None)
    if type(dtype) is not str or dtype not in DTYPE_BYTES or kind not in _KINDS:
        raise ImageCorrupt(f"family {name[:40]!r} has no known dtype or kind")
    if type(shape) is not list or len(shape) > MAX_AXES:
        raise ImageCorrupt(f"family {name[:40]!r} has no usable shape")
    if not all(type(size) is int and 1 <= size < MAX_POSITION for size in shape):
        raise ImageCorrupt(f"family {name[:40]!r} has sizes that are out of range")
    return StateFamily(name=name, shape=tuple(shape), dtype=dtype, kind=_KINDS[kind])


def _number(text: str) -> int:
    if not _NUMBER.match(text):
        raise ImageCorrupt(f"{text[:40]!r} is not a number")
    return int(text)


def _fault(meta: ImageMeta) -> str | None:
    """Why the meta describes no image, or None."""
    return _layout_fault(meta.layout, meta.fingerprints) or _position_fault(meta)


@lru_cache(maxsize=16)
def _layout_fault(layout: Layout, prints: Fingerprints) -> str | None:
    if len(layout.families) > MAX_FAMILIES:
        return f"{len(layout.families)} families"
    for family in layout.families:
        if family.name == _METADATA or not _FAMILY_NAME.match(family.name):
            return f"{family.name[:40]!r} cannot name a family"
        if not 1 <= len(family.shape) <= MAX_AXES or min(family.shape) < 1:
            return f"family {family.name} has shape {list(family.shape)[:9]}: nothing to keep"
    for text in (prints.layout, prints.weights, prints.build):
        if not _FINGERPRINT.match(text):
            return f"{text[:40]!r} cannot be a fingerprint"
    if prints.layout != layout.fingerprint:
        return f"the layout {layout.fingerprint} is called {prints.layout[:60]}"
    return None


def _position_fault(meta: ImageMeta) -> str | None:
    if not 0 <= meta.absorbed <= meta.position < MAX_POSITION:
        return f"absorbed {meta.absorbed} of position {meta.position}"
    if meta.absorbed + len(meta.pending) != meta.position:
        return f"{len(meta.pending)} pending tokens from {meta.absorbed} to {meta.position}"
    if not all(0 <= token < MAX_TOKEN for token in meta.pending):
        return "a pending token is out of range"
    return None
