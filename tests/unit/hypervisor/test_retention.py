"""The rule that thins images out."""

from __future__ import annotations

import random
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statevisor.hypervisor.retention import DENSE, surplus


def test_everything_near_the_newest_stays() -> None:
    positions = range(1_000_000 - DENSE, 1_000_001, 256)

    assert surplus(positions) == frozenset()
    assert surplus([]) == frozenset()
    assert surplus([0]) == frozenset()


def test_far_from_the_newest_one_for_each_power_of_two_stays() -> None:
    positions = set(range(0, 1_000_001, 1000))

    kept = sorted(positions - surplus(positions))

    assert kept[0] == 0
    old = [p for p in kept if 1_000_000 - p > DENSE]
    assert len(old) <= 2 * (log2(1_000_000 / DENSE) + 1)
    assert len(kept) - len(old) == 9


def test_what_is_fixed_stays_and_stands_for_no_other() -> None:
    positions = range(0, 100_001, 1000)

    assert surplus(positions, fixed=[3000]) == surplus(positions) - {3000}


@given(st.sets(st.integers(0, 1 << 20), max_size=60), st.integers(1, 4096))
def test_the_newest_and_the_oldest_stay(positions: set[int], dense: int) -> None:
    gone = surplus(positions, dense=dense)

    assert gone <= positions
    if positions:
        assert max(positions) not in gone
        assert min(positions) not in gone


@pytest.mark.parametrize("seed", range(10))
def test_thinned_as_it_grows_an_image_is_never_far(seed: int) -> None:
    dice, dense = random.Random(seed), 64
    every: list[int] = []
    kept: set[int] = set()
    end = 0
    for _ in range(150):
        end += dice.randrange(1, 40)
        every.append(end)
        kept.add(end)
        if dice.random() < 0.3:
            kept -= surplus(kept, dense=dense)
        for position in every:
            near = max(p for p in kept if p <= position)
            assert position - near < max(2 * (end - position), 1)
    kept -= surplus(kept, dense=dense)
    assert len(kept) <= dense + 2 * (log2(end / dense) + 2)


def test_without_the_cells_an_image_may_be_far() -> None:
    """The rule that keeps the newest of each band instead loses all that is old."""

    def newest_of_each_band(positions: set[int], dense: int) -> set[int]:
        end = max(positions)
        best: dict[int, int] = {}
        for p in sorted(positions):
            if end - p > dense:
                best[(end - p - 1).bit_length()] = p
        return {p for p in positions if end - p > dense and p not in best.values()}

    kept: set[int] = set()
    every = range(0, 6_000, 10)
    for end in every:
        kept.add(end)
        kept -= newest_of_each_band(kept, 64)

    far = [p - max([q for q in kept if q <= p], default=0) - 2 * (every[-1] - p) for p in every]
    assert max(far) > 0
