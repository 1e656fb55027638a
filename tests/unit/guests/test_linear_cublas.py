"""The library product's environment and arithmetic; its bits are tested in tests/gpu."""

import subprocess
import sys

import pytest
import torch

from statevisor.guests.linear_cublas import CublasLinear
from statevisor.guests.ops_float64 import Float64Ops
from statevisor.guests.starved_blas import ENVIRONMENT, unmet
from statevisor.hypervisor.errors import CapabilityMissing


@pytest.mark.parametrize("name", ENVIRONMENT)
@pytest.mark.parametrize("value", [None, "0"])
def test_each_variable_is_asked_for(name: str, value: str | None) -> None:
    environ = {key: other for key, other in ENVIRONMENT.items() if key != name}
    if value is not None:
        environ[name] = value
    assert unmet(environ) == (name,)
    with pytest.raises(CapabilityMissing, match=name):
        CublasLinear(environ)


def test_the_environment_can_be_had_before_torch_is_loaded() -> None:
    program = "import sys, statevisor.guests.starved_blas; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("activation", [None, "tanh", "sigmoid", "relu2"])
def test_products_and_groups_match_float64(activation) -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(5, 40, generator=generator), torch.randn(7, 40, generator=generator)
    linear = CublasLinear(ENVIRONMENT)
    wanted = Float64Ops().linear(x, weight, activation)
    got = linear(x, weight, activation)
    assert float((got.double() - wanted).norm() / wanted.norm()) < 1e-6
    assert torch.equal(linear.group([(x, weight, activation)])[0], got)
