"""The hashes: one identity however the bytes are cut, one checksum per MiB."""

from __future__ import annotations

import itertools
import random

import pytest

from statevisor.store.digest import PIECE_BYTES, ImageHash, checksum, digest, pieces

# the test vector of the BLAKE3 specification for no input
EMPTY = "blake3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


def test_it_is_blake3():
    assert digest([]) == EMPTY


@pytest.mark.parametrize(
    "cuts", [[], [1], [4096], [PIECE_BYTES], [5, PIECE_BYTES, 2 * PIECE_BYTES]]
)
def test_the_cut_does_not_matter(cuts):
    data = random.Random(1).randbytes(2 * PIECE_BYTES + 4096)
    edges = [0, *cuts, len(data)]
    parts = [memoryview(data)[a:b] for a, b in itertools.pairwise(edges)]
    made = list(pieces(parts))
    assert [sum(map(len, piece)) for piece in made] == [PIECE_BYTES, PIECE_BYTES, 4096]
    assert b"".join(bytes(part) for piece in made for part in piece) == data
    hashed = ImageHash()
    for piece in made:
        hashed.add(piece, memoryview(b""))
    assert hashed.digest == digest(parts) == digest([memoryview(data)])
    whole = [
        checksum(memoryview(data)[k : k + PIECE_BYTES]) for k in range(0, len(data), PIECE_BYTES)
    ]
    assert hashed.checksums == whole


def test_padding_counts_for_the_checksum_and_not_for_the_identity():
    one, other = ImageHash(), ImageHash()
    piece = [memoryview(b"state")]
    assert one.add(piece, memoryview(b"\0\0")) != other.add(piece, memoryview(b"\0\1"))
    assert one.digest == other.digest


def test_no_bytes_are_no_pieces():
    assert list(pieces([memoryview(b""), memoryview(b"")])) == []
    assert len(bytes.fromhex(EMPTY.removeprefix("blake3:"))) == 32
