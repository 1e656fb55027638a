"""Sizes and static inputs of steps with longer rows; their graphs are tested in tests/gpu."""

from __future__ import annotations

import random

import pytest
import torch

from statevisor.guests.mixed_rows import (
    MixedRows,
    Size,
    mixed_sizes,
    size_of,
    write,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(("tokens", "slots"), [(64, 5), (100, 9), (512, 128), (512, 256)])
def test_every_step_has_a_size_that_holds_it(tokens: int, slots: int) -> None:
    chance, sizes = random.Random(1), mixed_sizes(tokens, slots)
    for _ in range(400):
        singles = chance.randint(0, slots - 1)
        longer = chance.randint(1, min(slots - singles, (tokens - singles) // 2))
        lengths = [2] * longer
        for _ in range(chance.randint(0, tokens - singles - 2 * longer)):
            lengths[chance.randrange(longer)] += 1
        size = size_of([*lengths, *[1] * singles], sizes)
        assert size is not None, (singles, lengths)
        assert size.holds(singles, sum(lengths), longer)
        assert not any(
            smaller.holds(singles, sum(lengths), longer) for smaller in sizes if smaller < size
        )


def test_there_are_not_many_sizes() -> None:
    assert len(mixed_sizes(512, 128)) < 100
    assert len(mixed_sizes(512, 256)) < 120
    assert max(size.rows for size in mixed_sizes(512, 256)) < 400


def test_where_tokens_are_filled_up_there_is_a_row_for_them() -> None:
    size = Size(singles=8, tokens=16, longer=3)
    assert size.holds(8, 16, 3)
    assert size.holds(1, 15, 2)
    assert not size.holds(8, 15, 3)
    assert not size.holds(9, 2, 1)
    assert not size.holds(0, 2, 1), "without rows of one token there is a size without them"


def test_rows_of_one_token_come_first_and_padding_last() -> None:
    size = Size(singles=4, tokens=8, longer=4)
    mixed = MixedRows([Size(8, 16, 9), size], CPU, pinned=False)
    host = mixed.host()
    write(host, Size(8, 16, 9), [range(1, 10), range(1, 8)])
    write(host, size, [(1, 2, 3), (1, 2)])
    mixed.send(host, size)
    batch = mixed.batch(size)
    assert batch.singles == 4
    assert batch.longest > 1
    assert batch.tokens.tolist() == [0, 0, 0, 0, 1, 2, 3, 1, 2, 0, 0, 0]
    assert batch.rows.tolist() == [0, 1, 2, 3, 4, 4, 4, 5, 5, 6, 6, 6]
    assert batch.starts.tolist() == [0, 1, 2, 3, 4, 7, 9, 9, 9]
    assert batch.lasts.tolist() == [0, 1, 2, 3, 6, 8, 0, 0]
    firsts = [True] * 5 + [False, False, True, False, False, False, False]
    assert batch.firsts.tolist() == firsts
    with pytest.raises(AssertionError, match="no row for padding"):
        write(host, size, [(1, 2)] * 3 + [(1,)])
