"""The free list against a plain map of bytes, and every way to misuse it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statevisor.hypervisor.errors import StatevisorError
from statevisor.store.freelist import FreeList


def test_the_first_range_that_fits_is_taken():
    room = FreeList(100, [(10, 20), (40, 50)])
    assert room.take(11) is None
    assert room.take(10) == 0
    assert room.take(10) == 30
    assert room.take(10) == 90
    assert room.take(1) is None
    room.check()


def test_neighbours_join():
    room = FreeList(30)
    assert [room.take(10) for _ in range(3)] == [0, 10, 20]
    room.give(0, 10)
    room.give(20, 10)
    assert room.largest == 10
    room.give(10, 10)
    assert (room.largest, room.tail, room.empty) == (30, 30, True)
    room.check()


def test_growing_joins_the_tail():
    room = FreeList(10, [(0, 4)])
    room.extend(20)
    assert room.tail == room.largest == 16
    room.check()
    full = FreeList(10, [(0, 10)])
    full.extend(12)
    assert full.tail == 2
    full.check()


@pytest.mark.parametrize("used", [[(0, 10), (5, 10)], [(0, 10), (0, 10)], [(95, 10)], [(5, 0)]])
def test_ranges_that_overlap_or_leave_the_slab_are_refused(used):
    with pytest.raises(StatevisorError, match="overlaps another or leaves"):
        FreeList(100, used)


@pytest.mark.parametrize(("offset", "length"), [(0, 10), (0, 4), (2, 2), (4, 6)])
def test_what_is_not_in_use_cannot_be_freed(offset, length):
    room = FreeList(10, [(0, 5)])
    with pytest.raises(StatevisorError, match="freed twice"):
        room.give(offset, length)
    room.check()


def test_a_second_free_is_refused():
    room = FreeList(10)
    assert room.take(5) == 0
    room.give(0, 5)
    with pytest.raises(StatevisorError, match="freed twice"):
        room.give(0, 5)


def test_the_check_finds_a_lost_byte_and_a_byte_held_twice():
    room = FreeList(10)
    room.take(4)
    room._used[0] = 3
    with pytest.raises(AssertionError):
        room.check()
    room._used[0] = 5
    with pytest.raises(AssertionError):
        room.check()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 12)),
        st.tuples(st.just("give"), st.integers(0, 20)),
        st.tuples(st.just("extend"), st.integers(1, 8)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(steps=STEPS)
def test_it_agrees_with_a_map_of_bytes(steps):
    room, model, held = FreeList(16), [False] * 16, []
    for verb, n in steps:
        if verb == "take":
            fits = (k for k in range(len(model) - n + 1) if not any(model[k : k + n]))
            expected = next(fits, None)
            assert room.take(n) == expected
            if expected is not None:
                model[expected : expected + n] = [True] * n
                held.append((expected, n))
        elif verb == "give" and held:
            offset, length = held.pop(n % len(held))
            room.give(offset, length)
            model[offset : offset + length] = [False] * length
        elif verb == "extend":
            model += [False] * n
            room.extend(len(model))
        room.check()
        assert room.used_bytes == sum(model)
        assert room.empty == (not any(model))
    again = FreeList(len(model), held)
    again.check()
    assert (again.largest, again.tail) == (room.largest, room.tail)
