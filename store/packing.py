"""Tokens, runs of them and journal groups as bytes.

A run is 8 bytes of xxh3 over its tokens and the row that they stand in, and the tokens as
little-endian int32.

A group is 8 bytes of xxh3 over the rest, seeded with the row's id, and a msgpack list: version,
segments, positions, counts, and all tokens as little-endian int32.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import msgpack
import xxhash

from statevisor.hypervisor.catalog_port import JournalEntry
from statevisor.hypervisor.errors import CatalogCorrupt, StatevisorError

_VERSION = 1
_SUM = 8
#: segment, start, count
_PLACE = struct.Struct("<qqq")


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Tokens as little-endian int32. Raises: OverflowError."""
    packed = array("i", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_tokens(data: bytes) -> array[int]:
    """What `pack_tokens` packed."""
    tokens = array("i")
    tokens.frombytes(data)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens


def pack_run(segment: int, start: int, kind: str, tokens: Sequence[int]) -> bytes:
    """A run as the row of that segment and start keeps it. Raises: OverflowError."""
    body = pack_tokens(tokens)
    return _run_sum(segment, start, len(tokens), kind, body) + body


def unpack_run(segment: int, start: int, count: int, kind: str, data: bytes) -> array[int]:
    """The tokens of a row of these values. Raises: CatalogCorrupt, naming the row."""
    body = data[_SUM:]
    if _run_sum(segment, start, count, kind, body) != data[:_SUM]:
        raise CatalogCorrupt(
            f"the tokens from {start} of segment {segment} are damaged: their checksum "
            "does not match",
            hint="They are not served. Roll the actor back to before them, or restore a backup.",
        )
    return unpack_tokens(body)


def _run_sum(segment: int, start: int, count: int, kind: str, body: bytes) -> bytes:
    place = _PLACE.pack(segment, start, count) + kind.encode()
    made: bytes = xxhash.xxh3_64_digest(body, seed=xxhash.xxh3_64_intdigest(place))
    return made


def pack_group(row: int, entries: Sequence[JournalEntry]) -> bytes:
    """One group as the row of that id keeps it."""
    body: bytes = msgpack.packb(
        [
            _VERSION,
            [entry.segment for entry in entries],
            [entry.position for entry in entries],
            [len(entry.tokens) for entry in entries],
            pack_tokens(chain.from_iterable([entry.tokens for entry in entries])),
        ]
    )
    checksum: bytes = xxhash.xxh3_64_digest(body, seed=row)
    return checksum + body


def unpack_group(row: int, data: bytes) -> Iterator[tuple[int, int, array[int]]]:
    """Segment, position and tokens of every entry. Raises: StatevisorError, naming the row."""
    body = data[_SUM:]
    if xxhash.xxh3_64_digest(body, seed=row) != data[:_SUM]:
        raise StatevisorError(
            f"journal row {row} is damaged: its checksum does not match",
            hint="Restore the catalog from a backup; nothing was read from this row.",
        )
    version, segments, positions, counts, packed = msgpack.unpackb(body)
    if version != _VERSION:
        raise StatevisorError(f"journal row {row} is of version {version}, not {_VERSION}")
    tokens, at = unpack_tokens(packed), 0
    for segment, position, count in zip(segments, positions, counts, strict=True):
        yield segment, position, tokens[at : at + count]
        at += count
