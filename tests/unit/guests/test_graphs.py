"""Buckets and static inputs of graphed steps; graphs themselves are tested in tests/gpu."""

import pytest
import torch

from statevisor.guests.batch import pack
from statevisor.guests.graphs import (
    BUCKETS,
    DecodeRows,
    GraphedForward,
    fitting_buckets,
    prompt,
)
from statevisor.guests.ops import RaggedBatch
from statevisor.hypervisor.plan import Row

CPU = torch.device("cpu")


def decode_batch(tokens: list[int], slots: list[int], longest: int = 1) -> RaggedBatch:
    count = torch.arange(len(slots) + 1)
    return RaggedBatch(
        tokens=torch.tensor(tokens),
        slots=torch.tensor(slots),
        starts=count,
        rows=count[:-1],
        firsts=torch.ones(len(slots), dtype=torch.bool),
        lasts=count[:-1],
        longest=longest,
    )


@pytest.mark.parametrize(
    ("slots", "wanted"),
    [(1, (1,)), (3, (1, 2, 4)), (4, (1, 2, 4)), (20, (1, 2, 4, 8, 16, 24)), (999, BUCKETS)],
)
def test_buckets_end_with_the_first_that_holds_all_slots(slots, wanted):
    assert fitting_buckets(slots) == wanted


def test_a_filled_bucket_ends_in_padding_rows():
    rows = DecodeRows(8, CPU)
    batch = rows.batch(8)
    rows.fill(decode_batch([5, 6, 7, 8, 9], [1, 2, 3, 4, 5]), 8)
    rows.fill(decode_batch([11, 12], [6, 4]), 8)
    assert batch.tokens.tolist() == [11, 12, 0, 0, 0, 0, 0, 0]
    assert batch.slots.tolist() == [6, 4, 0, 0, 0, 0, 0, 0]
    assert batch.starts.tolist() == list(range(9))
    assert batch.rows.tolist() == batch.lasts.tolist() == list(range(8))
    assert batch.firsts.all()


def test_without_a_graph_every_batch_takes_the_eager_step():
    fed = []

    def step(batch: RaggedBatch) -> torch.Tensor:
        fed.append(batch)
        return batch.tokens[:, None]

    forward = GraphedForward(step, slots=4, device=CPU)
    batch = decode_batch([3, 4], [1, 2])
    assert forward(batch).tolist() == [[3], [4]]
    assert fed == [batch]


def test_the_prompt_fed_at_start_is_one_padding_row():
    wanted = pack([Row(slot=0, tokens=(0,) * 5)], CPU)
    fed = prompt(5, CPU)
    for name in ("tokens", "slots", "starts", "rows", "firsts", "lasts"):
        assert torch.equal(getattr(fed, name), getattr(wanted, name)), name
    assert fed.longest == wanted.longest
