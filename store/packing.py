"""Tokens and journal groups as bytes.

A group is 8 bytes of xxh3 over the rest, seeded with the row's id, and a msgpack list: version,
segments, positions, counts, and all tokens as little-endian int32.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import msgpack
import xxhash

from statevisor.hypervisor.catalog_port import JournalEntry
from statevisor.hypervisor.errors import StatevisorError

_VERSION = 1
_SUM = 8


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
