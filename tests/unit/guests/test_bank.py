from __future__ import annotations

import random

import pytest
import torch

from statevisor.guests.bank import ALIGNMENT, Bank
from statevisor.hypervisor.errors import CapabilityMissing
from statevisor.hypervisor.layout import Layout, StateFamily


def layout_of(parts: int) -> Layout:
    """Layouts with 1 to 4 parts per layer, of mixed dtypes and depths, as model families have."""
    families = (
        StateFamily(name="wkv", shape=(3, 2, 8, 8), dtype="F32"),
        StateFamily(name="conv", shape=(3, 16, 4), dtype="BF16"),
        StateFamily(name="shift", shape=(2, 32), dtype="F16"),
        StateFamily(name="count", shape=(1, 8), dtype="I64"),
    )
    return Layout(families=families[:parts])


def random_row(bank: Bank, seed: int) -> bytes:
    return random.Random(seed).randbytes(bank.layout.row_bytes)


def row_of(bank: Bank, slot: int) -> bytes:
    out = bytearray(bank.layout.row_bytes)
    bank.save(slot, memoryview(out))
    return bytes(out)


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_rows_of_any_number_of_families_come_back_as_they_went(parts: int) -> None:
    bank = Bank(layout_of(parts), slots=5)
    rows = {slot: random_row(bank, slot) for slot in range(1, 6)}
    for slot, row in rows.items():
        bank.load(slot, memoryview(row))
    assert {slot: row_of(bank, slot) for slot in rows} == rows


def test_a_loaded_row_is_seen_through_the_views_in_layout_order() -> None:
    bank = Bank(layout_of(4), slots=2)
    row = random_row(bank, 1)
    bank.load(2, memoryview(row))
    for family in bank.layout.families:
        at = bank.layout.offset(family.name)
        expected = row[at : at + family.nbytes]
        seen = bank.views[family.name][2].contiguous().view(torch.uint8).flatten()
        assert seen.numpy().tobytes() == expected
        layers = [part[2] for part in bank.layers(family.name)]
        assert len(layers) == family.shape[0]
        stacked = torch.stack(layers).view(torch.uint8).flatten()
        assert stacked.numpy().tobytes() == expected


def test_a_write_through_a_layer_view_is_in_the_saved_row() -> None:
    bank = Bank(layout_of(3), slots=2)
    bank.layers("shift")[1][2] = 1.5
    row = row_of(bank, 2)
    at = bank.layout.offset("shift")
    values = torch.frombuffer(bytearray(row[at:]), dtype=torch.float16)
    assert values.tolist() == [0.0] * 32 + [1.5] * 32
    assert not any(row_of(bank, 1))


def test_clear_makes_all_zero_bytes_of_one_slot_only() -> None:
    bank = Bank(layout_of(2), slots=3)
    for slot in (1, 2, 3):
        bank.load(slot, memoryview(random_row(bank, slot)))
    bank.clear(2)
    assert not any(row_of(bank, 2))
    assert row_of(bank, 1) == random_row(bank, 1)
    assert row_of(bank, 3) == random_row(bank, 3)


@pytest.mark.parametrize("targets", [[], [4], [2, 5, 3]])
def test_copy_reaches_its_targets_and_no_other_slot(targets: list[int]) -> None:
    bank = Bank(layout_of(3), slots=6)
    for slot in range(1, 7):
        bank.load(slot, memoryview(random_row(bank, slot)))
    bank.copy(1, targets)
    for slot in range(1, 7):
        assert row_of(bank, slot) == random_row(bank, 1 if slot in targets else slot)
    assert not bank.bytes[0].any()


def test_saved_rows_do_not_change_with_the_slot() -> None:
    bank = Bank(layout_of(1), slots=1)
    out = bytearray(bank.layout.row_bytes)
    bank.load(1, memoryview(random_row(bank, 3)))
    bank.save(1, memoryview(out))
    bank.clear(1)
    assert bytes(out) == random_row(bank, 3)


def test_a_writable_and_a_read_only_row_load_alike() -> None:
    bank = Bank(layout_of(1), slots=2)
    row = random_row(bank, 9)
    bank.load(1, memoryview(row))
    bank.load(2, memoryview(bytearray(row)))
    assert row_of(bank, 1) == row_of(bank, 2) == row


@pytest.mark.parametrize("slot", [0, -1, 4])
@pytest.mark.parametrize("call", ["clear", "save", "load", "source", "target"])
def test_no_call_reaches_the_padding_row_or_wraps_around(slot: int, call: str) -> None:
    bank = Bank(layout_of(1), slots=3)
    row = memoryview(bytearray(bank.layout.row_bytes))
    calls = {
        "clear": lambda: bank.clear(slot),
        "save": lambda: bank.save(slot, row),
        "load": lambda: bank.load(slot, row),
        "source": lambda: bank.copy(slot, [1]),
        "target": lambda: bank.copy(1, [2, slot]),
    }
    with pytest.raises(IndexError):
        calls[call]()


def test_a_row_of_another_size_is_refused() -> None:
    bank = Bank(layout_of(1), slots=1)
    short = bank.layout.row_bytes - 8
    with pytest.raises((RuntimeError, ValueError)):
        bank.load(1, memoryview(bytearray(short)))
    with pytest.raises((RuntimeError, ValueError)):
        bank.load(1, memoryview(bytes(short)))
    with pytest.raises((RuntimeError, ValueError)):
        bank.save(1, memoryview(bytearray(short)))


@pytest.mark.parametrize(("start", "size"), [(-1, 8), (8, 0), (1, 0), (0, -8)])
def test_a_part_that_is_not_within_a_row_is_refused(start: int, size: int) -> None:
    bank = Bank(layout_of(1), slots=2)
    part = memoryview(bytearray(size if size > 0 else bank.layout.row_bytes - size))
    before = bank.bytes.clone()
    for move in (bank.load, bank.save):
        with pytest.raises(ValueError, match="not within a row"):
            move(1, part, start)
    assert torch.equal(bank.bytes, before)


def test_every_row_and_family_is_aligned() -> None:
    bank = Bank(layout_of(4), slots=3)
    for view in bank.views.values():
        for slot in range(4):
            assert view[slot].data_ptr() % ALIGNMENT == 0


def test_a_layout_that_would_not_be_aligned_is_refused() -> None:
    family = StateFamily(name="odd", shape=(1, 6), dtype="F32")
    with pytest.raises(CapabilityMissing, match="odd"):
        Bank(Layout(families=(family,)), slots=1)


def test_frames_hold_whole_rows_and_may_be_written_and_loaded() -> None:
    bank = Bank(layout_of(2), slots=2)
    frames = bank.frames(3)
    size = bank.layout.row_bytes
    assert len(frames) == 3 * size
    bank.load(1, memoryview(random_row(bank, 5)))
    bank.save(1, frames[size : 2 * size])
    bank.load(2, frames[size : 2 * size])
    assert row_of(bank, 2) == random_row(bank, 5)
