"""Inputs of the kernel tests: batches, random tensors, banks and distances."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from statevisor.guests.ops import RaggedBatch


def _batch(lengths: Sequence[int], slots: Sequence[int]) -> RaggedBatch:
    ends = torch.tensor(lengths).cumsum(0)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
    total = int(starts[-1])
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return RaggedBatch(
        tokens=torch.zeros(total, dtype=torch.int64),
        slots=torch.tensor(slots),
        starts=starts,
        rows=rows,
        firsts=torch.arange(total) == starts[rows],
        lasts=starts[1:] - 1,
        longest=max(lengths),
    )


@pytest.fixture
def make_batch() -> Callable[[Sequence[int], Sequence[int]], RaggedBatch]:
    """(lengths, slots) -> a batch whose token ids are not used."""
    return _batch


@pytest.fixture
def draw() -> Callable[..., torch.Tensor]:
    """(shape..., dtype=) -> standard normal numbers, always the same sequence in one test."""
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    return draw


@pytest.fixture
def distance() -> Callable[[torch.Tensor, torch.Tensor], float]:
    """Relative distance from a float64 reference; NaN never compares as small."""

    def distance(got: torch.Tensor, want: torch.Tensor) -> float:
        return float((got.double() - want.double()).norm() / want.double().norm())

    return distance
