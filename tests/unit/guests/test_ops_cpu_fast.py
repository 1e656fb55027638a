"""The fast mode on the CPU: the same function to rounding; `tests/exact` finds it inexact."""

from __future__ import annotations

import pytest
import torch

from statevisor.guests.ops_cpu_fast import FastCpuOps
from statevisor.guests.ops_float64 import Float64Ops


@pytest.mark.parametrize("activation", [None, "tanh", "sigmoid", "relu2"])
def test_products_match_float64(activation) -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(37, 40, generator=generator), torch.randn(7, 40, generator=generator)
    wanted = Float64Ops().linear(x, weight, activation)
    got = FastCpuOps().linear(x, weight, activation)
    assert float((got.double() - wanted).norm() / wanted.norm()) < 1e-6
