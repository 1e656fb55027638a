"""The fast mode on the CPU: the same function to rounding, and none of the contract."""

from __future__ import annotations

import pytest
import torch

from statevisor.guests.families.rwkv7 import Rwkv7Config, Rwkv7Model, random_weights
from statevisor.guests.invariance import check_row_invariance
from statevisor.guests.ops_cpu import CpuOps
from statevisor.guests.ops_cpu_fast import FastCpuOps
from statevisor.guests.ops_float64 import Float64Ops
from statevisor.hypervisor.errors import CapabilityMissing

CONFIG = Rwkv7Config(
    layers=1, width=128, heads=2, ffn=256, rank_w=8, rank_a=8, rank_v=8, rank_g=8, vocab=300
)


@pytest.mark.parametrize("activation", [None, "tanh", "sigmoid", "relu2"])
def test_products_match_float64(activation) -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(37, 40, generator=generator), torch.randn(7, 40, generator=generator)
    wanted = Float64Ops().linear(x, weight, activation)
    got = FastCpuOps().linear(x, weight, activation)
    assert float((got.double() - wanted).norm() / wanted.norm()) < 1e-6


def test_the_check_that_exact_operators_pass_finds_that_rows_depend_on_rows() -> None:
    """Why the mode has a build of its own, and what the check is worth."""
    tensors = random_weights(CONFIG, 1)
    exact, fast = (
        Rwkv7Model.build(CONFIG, tensors, ops, "F32") for ops in (CpuOps(), FastCpuOps())
    )
    exact.ops.admit(exact.matrices())
    check_row_invariance(exact)
    with pytest.raises(CapabilityMissing, match="other bits"):
        check_row_invariance(fast)
