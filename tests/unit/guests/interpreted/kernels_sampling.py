"""Draws of the kernel, interpreted: the bits of `guests/sampling.py`, row by row."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
import triton
import triton.language as tl

from statevisor.guests import sampling_triton, step_triton
from statevisor.guests.device_results import read_results
from statevisor.guests.sampling import sample
from statevisor.guests.step_rows import SLOT, WIDTH, entries, fill
from statevisor.hypervisor.plan import DRAWN, Row, RowResult
from statevisor.hypervisor.sampling import Draw, SamplerSettings


def make_draw(seed: int, vocab: int, **fixed: float | None) -> Draw:
    pick = random.Random(seed)
    chosen = {
        "temperature": pick.choice([0.0, 1e-9, 0.3, 0.7, 1.0, 1.9, 100.0]),
        "top_k": pick.choice([0, 0, 1, 2, 5, 40, 10_000]),
        "top_p": pick.choice([1.0, 1.0, 0.999, 0.9, 0.5, 0.01, 1e-12]),
        "min_p": pick.choice([0.0, 0.0, 0.001, 0.1, 1.0]),
        "logprobs": pick.choice([None, None, 0, 3]),
    }
    ids = sorted(pick.sample(range(vocab), min(vocab, pick.randrange(4))))
    return Draw(
        seed=pick.randrange(2**53),
        position=pick.randrange(2**40),
        settings=SamplerSettings(**{**chosen, **fixed}),
        bias=tuple((token, pick.uniform(-9, 9)) for token in ids),
    )


def drawn(
    logits: torch.Tensor, draws: Sequence[Draw], *, stops=frozenset(), tile=64, kernel=None
) -> tuple[list[RowResult], list[int]]:
    """The result of each row, and what `last` holds of its slot; row i has slot i + 1."""
    rows, vocab = logits.shape
    table = torch.zeros(rows, WIDTH, dtype=torch.int64)
    view = table.numpy()
    fill(view, [Row(slot=i + 1, tokens=(0,), draw=d, stops=stops) for i, d in enumerate(draws)])
    ids, amounts = entries(view, dict(enumerate(draws)))
    ids, amounts = torch.tensor([*ids, 0]), torch.tensor([*amounts, 0.0])
    logits, saved = logits.clone(), torch.zeros_like(amounts)
    results = torch.full((rows, 2), -7)
    last, listed = torch.full((rows + 1,), -7), torch.full((rows, vocab), -7, dtype=torch.int32)
    details = torch.full((rows, step_triton.DETAILS), -7)
    step_triton.bias_kernel[(rows,)](logits, table, ids, amounts, saved, VOCAB=vocab, TILE=16)
    slots, hidden = table[:, SLOT].contiguous(), torch.zeros(rows, 8)
    (kernel or sampling_triton.draw_kernel)[(rows,)](
        *(logits, hidden, table, slots, last, listed, results, 8),
        **{"VOCAB": vocab, "C": 8, "TILE": tile, "LIST": 32},
    )
    step_triton.describe_kernel[(rows,)](
        logits, table, results, ids, saved, details, VOCAB=vocab, TILE=tile, FEW=16
    )
    return read_results(results.numpy(), details.numpy(), draws), last.tolist()[1:]


def logits_of(seed: int, rows: int, vocab: int, spread: float = 3.0) -> torch.Tensor:
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread
    logits[: rows // 3] = logits[: rows // 3].round()  # many ties, and both zeros
    logits[rows // 3 : rows // 2] = logits[rows // 3 : rows // 2].bfloat16().float()
    return logits


@pytest.mark.parametrize(("vocab", "spread"), [(1, 3.0), (61, 3.0), (64, 0.02), (100, 30.0)])
def test_a_draw_has_the_bits_of_the_plain_sampler(vocab: int, spread: float) -> None:
    logits = logits_of(vocab, 4, vocab, spread)
    draws = [make_draw(1000 * vocab + i, vocab) for i in range(4)]
    got, last = drawn(logits, draws)
    assert got == sample(logits, draws)
    assert last == [result.token for result in got]


@pytest.mark.parametrize(
    "cut",
    [
        {"top_k": 7},
        {"top_p": 0.8},
        {"top_k": 20, "top_p": 0.6},
        {"min_p": 0.05, "top_p": 0.99},
        {"top_k": 3, "logprobs": 3},
    ],
    ids=str,
)
def test_every_cut_has_the_bits_of_the_plain_sampler(cut: dict[str, float]) -> None:
    logits = logits_of(5, 3, 60)
    draws = [
        make_draw(i, 60, **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "logprobs": None} | cut)
        for i in range(3)
    ]
    assert drawn(logits, draws)[0] == sample(logits, draws)


def test_ties_are_cut_at_the_lowest_ids() -> None:
    logits = torch.zeros(2, 50)
    logits[1, 25:] = 1.0
    fixed = {"temperature": 1.0, "min_p": 0.0, "logprobs": None, "top_k": 0, "top_p": 1.0}
    draws = [make_draw(1, 50, **fixed | {"top_k": 9}), make_draw(2, 50, **fixed | {"top_p": 0.3})]
    assert drawn(logits, draws)[0] == sample(logits, draws)


def test_a_row_that_is_not_finite_gives_no_token_and_harms_no_other() -> None:
    logits = logits_of(3, 5, 40)
    draws = [make_draw(i, 40) for i in range(5)]
    clean, _ = drawn(logits, draws)
    logits[1, 39], logits[3, 0] = float("nan"), -float("inf")
    mixed, last = drawn(logits, draws)
    assert [result.finite for result in mixed] == [True, False, True, False, True]
    assert [mixed[i] for i in (0, 2, 4)] == [clean[i] for i in (0, 2, 4)]
    assert (last[1], last[3]) == (-1, -1)


def test_a_penalty_does_not_hide_a_logit_that_is_not_finite() -> None:
    logits = torch.zeros(1, 8)
    logits[0, 2] = float("inf")
    draw = Draw(seed=1, position=1, settings=SamplerSettings(), bias=((2, 3.0),))
    assert drawn(logits, [draw])[0] == sample(logits, [draw]) == [RowResult(finite=False)]


def test_a_stop_is_not_to_be_followed() -> None:
    logits = torch.zeros(2, 8)
    logits[0, 3] = logits[1, 4] = 1.0
    greedy = [Draw(seed=1, position=1, settings=SamplerSettings())] * 2
    results, last = drawn(logits, greedy, stops=frozenset({3, 7}))
    assert [result.token for result in results] == [3, 4]
    assert last == [-1, 4]


def follow(last: list[int], rows: list[Row]) -> tuple[list[int], list[int]]:
    table = torch.zeros(len(rows), WIDTH, dtype=torch.int64)
    fill(table.numpy(), rows)
    starts = torch.tensor([sum(len(row.tokens) for row in rows[:at]) for at in range(len(rows))])
    tokens = torch.tensor([token for row in rows for token in row.tokens])
    slots = torch.full((len(rows),), -7)
    step_triton.feed_kernel[(len(rows),)](table, starts, torch.tensor(last), tokens, slots)
    return tokens.tolist(), slots.tolist()


def test_a_row_follows_what_its_slot_drew() -> None:
    rows = [
        Row(slot=3, tokens=(DRAWN,)),
        Row(slot=1, tokens=(7, 8)),
        Row(slot=2, tokens=(DRAWN,)),
        Row(slot=4, tokens=(9,)),
    ]
    assert follow([-1, -1, -1, 5, -1], rows) == ([5, 7, 8, 0, 9], [3, 1, 0, 4])


@triton.jit
def float_draw_kernel(
    logits, hidden, rows, slots, last, listed, results, channels,
    VOCAB: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """The fault that integers are for: a draw by a float32 running sum."""
    index = tl.program_id(0)
    at = tl.arange(0, TILE)
    value = tl.load(logits + index * VOCAB + at, mask=at < VOCAB, other=-1e30)
    p = tl.exp(value - tl.max(value, axis=0))
    u = tl.load(rows + index * 20 + 1).to(tl.float32) / 9007199254740992.0
    token = tl.sum((tl.cumsum(p, axis=0) <= u * tl.sum(p, axis=0)).to(tl.int32), axis=0)
    tl.store(results + 2 * index, token.to(tl.int64))
    tl.store(results + 2 * index + 1, 1)


def test_control_another_sampler_is_told_apart() -> None:
    logits = logits_of(9, 6, 40)
    fixed = {"temperature": 1.0, "min_p": 0.0, "logprobs": None, "top_k": 0, "top_p": 1.0}
    draws = [make_draw(i, 40, **fixed) for i in range(6)]
    assert drawn(logits, draws, kernel=float_draw_kernel)[0] != sample(logits, draws)
