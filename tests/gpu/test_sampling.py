"""Draws on the device: the same bits as on the CPU, whatever the neighbours."""

from __future__ import annotations

import random

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from statevisor.guests.sampling import sample
from statevisor.hypervisor.plan import RowResult
from statevisor.hypervisor.sampling import Draw, SamplerSettings


def make_draw(seed: int, vocab: int) -> Draw:
    pick = random.Random(seed)
    ids = sorted(pick.sample(range(vocab), min(vocab, pick.randrange(4))))
    return Draw(
        seed=pick.randrange(2**53),
        position=pick.randrange(2**40),
        settings=SamplerSettings(
            temperature=pick.choice([0.0, 1e-9, 0.3, 0.7, 1.0, 1.9, 100.0]),
            top_k=pick.choice([0, 1, 5, 40, 2000]),
            top_p=pick.choice([1.0, 0.999, 0.9, 0.5, 0.01]),
            min_p=pick.choice([0.0, 0.001, 0.1]),
            logprobs=pick.choice([None, 0, 5, 20]),
        ),
        bias=tuple((token, pick.uniform(-9, 9)) for token in ids),
    )


@pytest.mark.parametrize(
    ("rows", "vocab", "spread"),
    [(64, 65536, 4.0), (33, 65536, 0.3), (256, 272, 3.0), (40, 1003, 2)],
)
def test_draws_are_the_bits_of_the_cpu(rows: int, vocab: int, spread: float, device) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(rows, vocab, generator=generator) * spread
    logits[: rows // 2] = logits[: rows // 2].round()  # many ties, and both zeros
    draws = [make_draw(seed, vocab) for seed in range(rows)]
    assert sample(logits.to(device), draws) == sample(logits, draws)


def test_a_row_is_the_same_alone_and_among_others(device) -> None:
    logits = torch.randn(24, 4099, generator=torch.Generator().manual_seed(1)).to(device) * 3
    draws = [make_draw(seed, 4099) for seed in range(24)]
    together = sample(logits, draws)
    assert together == [sample(logits[i : i + 1], draws[i : i + 1])[0] for i in range(24)]
    assert together[5:17] == sample(logits[5:17], draws[5:17])


def test_a_row_that_is_not_finite_harms_no_other(device) -> None:
    logits = torch.randn(8, 500, generator=torch.Generator().manual_seed(2)).to(device)
    draws = [make_draw(seed, 500) for seed in range(8)]
    clean = sample(logits, draws)
    logits[3, 499] = float("nan")
    logits[6, 0] = float("inf")
    mixed = sample(logits, draws)
    assert mixed[3] == mixed[6] == RowResult(finite=False)
    assert [mixed[i] for i in (0, 1, 2, 4, 5, 7)] == [clean[i] for i in (0, 1, 2, 4, 5, 7)]
