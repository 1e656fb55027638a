"""The vendor library's product: refused without its environment, row-invariant with it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from statevisor.guests.linear_cublas import CublasLinear
from statevisor.guests.starved_blas import ENVIRONMENT
from statevisor.hypervisor.errors import CapabilityMissing

#: Prints the shapes whose rows changed with the row count; argument: "starved" or "default".
PROGRAM = """
import os, sys
import torch
from statevisor.guests.linear_cublas import CublasLinear
starved = sys.argv[1] == "starved"
linear = CublasLinear(os.environ) if starved else (lambda x, w: torch.mm(x, w.T))
generator = torch.Generator("cuda").manual_seed(1)
changed = []
for act in (torch.bfloat16, torch.float16):
    for o, k in ((2048, 2048), (8192, 2048), (2048, 8192), (96, 2048), (2048, 96), (4096, 4096)):
        x = torch.randn(512, k, generator=generator, device="cuda").to(act)
        w = torch.randn(o, k, generator=generator, device="cuda").to(act)
        alone = torch.cat([linear(x[row : row + 1], w) for row in range(0, 512, 37)])
        for rows in (1, 2, 7, 8, 16, 33, 64, 100, 128, 129, 200, 256, 300, 512):
            picked = [row for row in range(0, 512, 37) if row < rows]
            if not torch.equal(linear(x[:rows], w)[picked], alone[: len(picked)]):
                changed.append(f"{o}x{k}@{rows}")
print(" ".join(changed))
"""


def run(kind: str, environ: dict[str, str]) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def bare() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}


def test_without_its_environment_it_is_refused():
    with pytest.raises(CapabilityMissing, match="TORCH_BLAS_PREFER_CUBLASLT"):
        CublasLinear({})


def test_with_it_rows_do_not_change_with_the_row_count():
    assert run("starved", {**bare(), **ENVIRONMENT}) == []


def test_the_plain_library_product_is_caught():
    assert run("default", bare()) != []
