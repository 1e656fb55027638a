"""The kernels of a draw compiled for a Hopper GPU, which needs no GPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from statevisor.guests import sampling_triton, step_triton  # noqa: E402

FLOAT, LONG = "*fp32", "*i64"
SHAPE = sampling_triton.shape_of(65536)
VOCAB = {"VOCAB": 65536, "TILE": SHAPE.tile}
TYPES = {
    "logits": FLOAT,
    "hidden": "*bf16",
    "listed": "*i32",
    "channels": "i32",
    "amounts": FLOAT,
    "saved": FLOAT,
}
KERNELS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "draw": (
        sampling_triton.draw_kernel,
        {**VOCAB, "C": 2048, "LIST": sampling_triton.LIST},
        SHAPE.warps,
    ),
    "feed": (step_triton.feed_kernel, {}, 1),
    "bias": (step_triton.bias_kernel, VOCAB | {"TILE": 512}, 4),
    "describe": (step_triton.describe_kernel, VOCAB | {"FEW": 512}, SHAPE.warps),
}


@cache
def compiled(name: str) -> Any:
    kernel, constants, warps = KERNELS[name]
    names = list(kernel.arg_names)
    types = {at: "constexpr" if at in constants else TYPES.get(at, LONG) for at in names}
    source = ASTSource(
        fn=kernel,
        signature=types,
        constexprs={(names.index(at),): value for at, value in constants.items()},
        attrs={
            (index,): [["tt.divisibility", 16]]
            for index, at in enumerate(names)
            if types[at].startswith("*")
        },
    )
    options = {"num_warps": warps, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize("name", ["draw", "describe"])
def test_the_compiler_contracts_no_product_with_a_sum_in_a_weight(name: str) -> None:
    assert compiled(name).asm["ptx"].count("fma.rn.f32") == 0


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_compiles(name: str) -> None:
    assert ".entry" in compiled(name).asm["ptx"]


def test_a_row_is_read_sixteen_bytes_at_a_time() -> None:
    assert "ld.global.v4" in compiled("draw").asm["ptx"]


def test_a_program_keeps_within_its_registers() -> None:
    """No array is indexed at run time: it would go to local memory and show as `.local`."""
    assert ".local" not in compiled("draw").asm["ptx"]
