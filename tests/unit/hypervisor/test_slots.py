"""Admission is exact; a slot has one owner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statevisor.hypervisor.errors import NoFreeSlot
from statevisor.hypervisor.slots import SlotTable


def test_slot_zero_is_never_given_out() -> None:
    table = SlotTable(3)
    assert {table.take("a") for _ in range(3)} == {1, 2, 3}
    with pytest.raises(NoFreeSlot):
        table.take("a")


def test_a_double_free_and_a_foreign_free_raise() -> None:
    table = SlotTable(2)
    slot = table.take("a")
    with pytest.raises(ValueError, match="held by 'a'"):
        table.give(slot, "b")
    table.give(slot, "a")
    with pytest.raises(ValueError, match="held by None"):
        table.give(slot, "a")


@pytest.mark.parametrize("slot", [0, -1, 4, 10**9])
def test_a_sentinel_is_no_slot(slot: int) -> None:
    table = SlotTable(3)
    with pytest.raises(ValueError, match="held by None"):
        table.give(slot, "a")


def test_freed_slots_return_last() -> None:
    table = SlotTable(3)
    first = table.take("a")
    table.give(first, "a")
    assert [table.take("b") for _ in range(3)][-1] == first


@given(st.lists(st.integers(0, 9), max_size=60))
def test_slots_are_conserved_under_any_sequence(moves: list[int]) -> None:
    table, held = SlotTable(5), []
    for move in moves:
        if move < 5 and held:
            slot = held.pop(move % len(held))
            table.give(slot, "x")
        elif table.free:
            held.append(table.take("x"))
        table.check()
        assert table.free == 5 - len(held)


def test_an_empty_bank_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        SlotTable(0)
