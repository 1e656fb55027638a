from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statevisor.hypervisor.catalog_port import JournalEntry
from statevisor.hypervisor.errors import CatalogCorrupt, StatevisorError
from statevisor.store.packing import (
    pack_group,
    pack_run,
    pack_tokens,
    unpack_group,
    unpack_run,
    unpack_tokens,
)

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=20)
ENTRIES = st.lists(
    st.builds(
        JournalEntry,
        turn_id=st.just("turn"),
        segment=st.integers(1, 2**53),
        position=st.integers(0, 2**40),
        tokens=TOKENS.map(tuple),
    ),
    max_size=20,
)


@given(TOKENS)
def test_tokens_come_back_and_are_little_endian(tokens):
    packed = pack_tokens(tokens)

    assert list(unpack_tokens(packed)) == tokens
    assert packed == b"".join(token.to_bytes(4, "little") for token in tokens)


@given(st.integers(1, 2**40), ENTRIES)
def test_groups_come_back(row, entries):
    found = list(unpack_group(row, pack_group(row, entries)))

    assert found == [(e.segment, e.position, array("i", e.tokens)) for e in entries]


def test_every_flipped_bit_of_a_group_is_found_and_its_row_named():
    entries = [
        JournalEntry(turn_id="t", segment=n, position=9 * n, tokens=(n, 7)) for n in range(1, 5)
    ]
    data = pack_group(12, entries)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StatevisorError, match="journal row 12 is damaged"):
            list(unpack_group(12, bytes(damaged)))


@given(
    st.integers(1, 2**53), st.integers(0, 2**40), st.sampled_from(["prompt", "generated"]), TOKENS
)
def test_runs_come_back(segment, start, kind, tokens):
    packed = pack_run(segment, start, kind, tokens)

    assert list(unpack_run(segment, start, len(tokens), kind, packed)) == tokens
    assert len(packed) == 8 + 4 * len(tokens)


def test_every_flipped_bit_of_a_run_and_of_its_row_is_found():
    row = {"segment": 3, "start": 9, "count": 3, "kind": "prompt"}
    data = pack_run(3, 9, "prompt", (5, 6, 7))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CatalogCorrupt, match="the tokens from 9 of segment 3"):
            unpack_run(**row, data=bytes(damaged))
    for name in ("segment", "start", "count"):
        for bit in range(31):
            with pytest.raises(CatalogCorrupt):
                unpack_run(**{**row, name: row[name] ^ 1 << bit}, data=data)
    for kind in ("generated", "qrompt", ""):
        with pytest.raises(CatalogCorrupt):
            unpack_run(**{**row, "kind": kind}, data=data)


@pytest.mark.parametrize("cut", [0, 7, 8, 20])
def test_a_cut_group_is_found(cut):
    entries = [JournalEntry(turn_id="t", segment=1, position=1, tokens=tuple(range(9)))]
    with pytest.raises(StatevisorError, match="damaged"):
        list(unpack_group(1, pack_group(1, entries)[:cut]))


def test_a_group_is_bound_to_its_row():
    data = pack_group(1, [JournalEntry(turn_id="t", segment=1, position=1, tokens=(1,))])
    with pytest.raises(StatevisorError, match="journal row 2"):
        list(unpack_group(2, data))


def test_a_row_of_256_turns_is_small():
    entries = [
        JournalEntry(turn_id="t", segment=1000 + n, position=5000, tokens=(n,)) for n in range(256)
    ]
    assert len(pack_group(1, entries)) < 3400


def test_tokens_beyond_32_bit_are_refused():
    with pytest.raises(OverflowError):
        pack_tokens([2**31])
