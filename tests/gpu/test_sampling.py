"""Draws on the device: the same bits as on the CPU, whatever the neighbours."""

from __future__ import annotations

import random

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from statevisor.guests import sampling_triton, step_triton
from statevisor.guests.device_results import DETAILS, read_results
from statevisor.guests.sampling import sample
from statevisor.guests.step_rows import SLOT, WIDTH, entries, fill
from statevisor.hypervisor.plan import Row, RowResult
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
    [(32, 65536, 4.0), (17, 65536, 0.3), (256, 272, 3.0), (40, 1003, 2)],
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


# -- the kernel ------------------------------------------------------------------------------------
def drawn(logits: torch.Tensor, draws: list[Draw], shape=None) -> list[RowResult]:
    """What the kernels of a whole step draw."""
    shape = shape or sampling_triton.shape_of(logits.shape[1])
    rows, vocab = logits.shape
    device = logits.device
    host = torch.zeros(rows, WIDTH, dtype=torch.int64)
    fill(host.numpy(), [Row(slot=at + 1, tokens=(0,), draw=d) for at, d in enumerate(draws)])
    ids, amounts = entries(host.numpy(), dict(enumerate(draws)))
    ids = torch.tensor([*ids, 0], device=device)
    amounts = torch.tensor([*amounts, 0.0], device=device)
    table, saved, logits = host.to(device), torch.zeros_like(amounts), logits.clone()
    results = torch.full((rows, 2), -7, device=device)
    details = torch.full((rows, DETAILS), -7, device=device)
    last = torch.full((rows + 1,), -7, device=device)
    listed = torch.full((rows, vocab), -7, dtype=torch.int32, device=device)
    slots, hidden = table[:, SLOT].contiguous(), torch.zeros(rows, 64, device=device)
    size = {"VOCAB": vocab, "TILE": shape.tile, "num_warps": shape.warps}
    size["enable_fp_fusion"] = False
    step_triton.bias_kernel[(rows,)](logits, table, ids, amounts, saved, VOCAB=vocab, TILE=512)
    sampling_triton.draw_kernel[(rows,)](
        *(logits, hidden, table, slots, last, listed, results, 64),
        **{"C": 64, "LIST": sampling_triton.LIST, **size},
    )
    step_triton.describe_kernel[(rows,)](
        logits, table, results, ids, saved, details, FEW=512, **size
    )
    assert last[1:].tolist() == results[:, 0].tolist()
    return read_results(results.cpu().numpy(), details.cpu().numpy(), draws)


@pytest.mark.parametrize(
    ("rows", "vocab", "spread"),
    [(24, 65536, 4.0), (24, 65536, 0.3), (256, 272, 3.0), (40, 1003, 2), (12, 65536, 0.0)],
)
def test_the_kernel_draws_the_bits_of_the_plain_sampler(rows, vocab, spread, device) -> None:
    generator = torch.Generator().manual_seed(vocab + rows)
    logits = torch.randn(rows, vocab, generator=generator) * spread
    logits[: rows // 3] = logits[: rows // 3].round()
    logits[rows // 3 : 2 * rows // 3] = logits[rows // 3 : 2 * rows // 3].bfloat16().float()
    for turn in range(4):
        draws = [make_draw(1000 * turn + seed, vocab) for seed in range(rows)]
        assert drawn(logits.to(device), draws) == sample(logits, draws)


def test_the_shape_of_a_program_changes_no_bit(device) -> None:
    logits = torch.randn(40, 65536, generator=torch.Generator().manual_seed(6)) * 2
    draws = [make_draw(7000 + seed, 65536) for seed in range(40)]
    wanted = sample(logits, draws)
    for tile, warps in ((8192, 16), (4096, 8), (2048, 4)):
        shape = sampling_triton.Shape(tile, warps)
        assert drawn(logits.to(device), draws, shape) == wanted


def test_a_row_of_the_kernel_is_the_same_alone_and_among_others(device) -> None:
    logits = torch.randn(200, 4099, generator=torch.Generator().manual_seed(1)).to(device) * 3
    draws = [make_draw(seed, 4099) for seed in range(200)]
    together = drawn(logits, draws)
    assert together[:24] == [drawn(logits[i : i + 1], draws[i : i + 1])[0] for i in range(24)]
    assert together[5:177] == drawn(logits[5:177], draws[5:177])


def test_a_row_of_the_kernel_that_is_not_finite_harms_no_other(device) -> None:
    logits = torch.randn(8, 500, generator=torch.Generator().manual_seed(2)).to(device)
    draws = [make_draw(seed, 500) for seed in range(8)]
    clean = drawn(logits, draws)
    logits[3, 499] = float("nan")
    logits[6, 0] = float("inf")
    mixed = drawn(logits, draws)
    assert mixed[3] == mixed[6] == RowResult(finite=False)
    assert [mixed[i] for i in (0, 1, 2, 4, 5, 7)] == [clean[i] for i in (0, 1, 2, 4, 5, 7)]


def test_control_contracted_products_are_told_apart(device, monkeypatch) -> None:
    """The guard taken out: a weight whose products may be contracted with its sums."""
    logits = torch.randn(64, 65536, generator=torch.Generator().manual_seed(3)) * 3
    settings = SamplerSettings(temperature=0.9, logprobs=0)
    draws = [Draw(seed=seed, position=1, settings=settings) for seed in range(64)]
    exact = sample(logits, draws)
    assert drawn(logits.to(device), draws) == exact
    kernel = step_triton.describe_kernel

    class Contracting:
        def __getitem__(self, grid):
            def launch(*args, **given):
                return kernel[grid](*args, **given | {"enable_fp_fusion": True})

            return launch

    monkeypatch.setattr(step_triton, "describe_kernel", Contracting())
    assert drawn(logits.to(device), draws) != exact
