"""Sizes and static inputs of graphed prompts; graphs themselves are tested in tests/gpu."""

from __future__ import annotations

import random

import pytest
import torch

from statevisor.guests.batch import pack
from statevisor.guests.ops import RaggedBatch
from statevisor.guests.prompt_graphs import PromptGraphs, PromptRows, prompt_sizes
from statevisor.hypervisor.plan import Row

CPU = torch.device("cpu")


def batch_of(*lengths: int) -> RaggedBatch:
    """Rows of so many tokens in the slots 1, 2, ..; no token is 0."""
    rows = [
        Row(slot=slot, tokens=tuple(range(1, 1 + length))) for slot, length in enumerate(lengths, 1)
    ]
    return pack(rows, CPU)


def make_graphs(fed: list[RaggedBatch], **options) -> PromptGraphs:
    def step(batch: RaggedBatch) -> torch.Tensor:
        fed.append(batch)
        return batch.tokens[batch.lasts][:, None]

    return PromptGraphs(step, device=CPU, **{"tokens": 64, "slots": 5, **options})


def test_sizes_end_with_the_first_that_holds_all() -> None:
    assert prompt_sizes(20, 5) == ((16, 1), (16, 4), (16, 6), (32, 1), (32, 4), (32, 6))
    assert max(prompt_sizes(512, 256)) == (512, 257)


def test_every_batch_of_a_step_has_a_size_that_holds_it() -> None:
    chance, graphs = random.Random(1), make_graphs([], tokens=100, slots=9)
    for _ in range(300):
        lengths = [chance.choice((1, 1, 3, 11)) for _ in range(chance.randint(1, 9))]
        batch = batch_of(*lengths)
        size = graphs.size(batch)
        if batch.longest == 1:
            assert size is None
            continue
        assert size is not None
        assert size[0] >= sum(lengths)
        # the padding tokens belong to a row of their own
        assert size[1] > len(lengths) or (size[1] == len(lengths) and size[0] == sum(lengths))
        assert not any(
            smaller[0] < size[0] and sum(lengths) < smaller[0] and len(lengths) < smaller[1]
            for smaller in graphs.sizes
        )


def test_padding_tokens_belong_to_an_empty_row_of_the_padding_slot() -> None:
    rows = PromptRows(16, 4, CPU)
    rows.fill(batch_of(9, 2, 5), (16, 4))
    rows.fill(batch_of(3, 1), (8, 4))
    batch = rows.batch((8, 4))
    assert batch.tokens.tolist() == [1, 2, 3, 1, 0, 0, 0, 0]
    assert batch.rows.tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert batch.slots.tolist() == [1, 2, 0, 0]
    assert batch.starts.tolist() == [0, 3, 4, 4, 4]
    assert batch.lasts.tolist() == [2, 3, 0, 0]
    assert batch.firsts.tolist() == [True, False, False, True, False, False, False, False]
    assert batch.longest > 1
    with pytest.raises(AssertionError, match="no padding row"):
        rows.fill(batch_of(2, 2, 2, 1), (8, 4))


def test_single_tokens_and_batches_past_every_size_take_the_wrapped_step() -> None:
    fed: list[RaggedBatch] = []
    graphs = make_graphs(fed, sizes=[(8, 2)], eager_from=6)
    for lengths in ((1, 1), (9,), (2, 2), (6,)):
        batch = batch_of(*lengths)
        graphs(batch)
        assert fed[-1] is batch
    padded = batch_of(5)
    assert graphs(padded).tolist() == [[5]]
    assert fed[-1] is not padded
    assert len(fed[-1].tokens) == 8
