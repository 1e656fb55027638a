"""The kernels compiled for a Hopper GPU, which needs no GPU: what the machine code must show.

The interpreter runs the text of a kernel; a compiler may still change its meaning (triton 3.6 once
took two values carried by a loop for one) or its order. These tests read what it made.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from statevisor.guests.launch_triton import can_depend  # noqa: E402
from statevisor.guests.linear_triton import linear_kernel  # noqa: E402
from statevisor.guests.mixers import shift_triton, wkv7_triton  # noqa: E402

ACT, FLOAT, LONG = "*bf16", "*fp32", "*i64"
WIDTH, HEADS = 256, 4
VECTORS = dict.fromkeys(("r", "k", "v", "kk", "a"), ACT)
INPUTS = dict.fromkeys(("w", "k", "v", "a", "v_gate", "v_first"), ACT)
INPUTS |= dict.fromkeys(("w0", "a0", "v0", "k_k", "k_a", "decay_out"), FLOAT)
INPUTS |= dict.fromkeys(("k_out", "v_out", "kk_out", "a_out"), ACT)
NORM = {"x": ACT, "weight": FLOAT, "bias": FLOAT, "out": ACT}
BATCH = {"rows": LONG, "slots": LONG, "starts": LONG}
SIZES = {"WIDTH": WIDTH, "EPS": 1e-5, "BLOCK": WIDTH}
SHIFT = {**NORM, **BATCH, "mixes": FLOAT, "shift": ACT, "spill": ACT, "tokens": "i64"}
PRODUCT = {"xs": (ACT,) * 2, "weights": (ACT,) * 2, "outs": (ACT,) * 2}
PRODUCT |= dict.fromkeys(("features", "inners", "parts", "codes"), ("i32",) * 2)
PRODUCT |= {"sums": FLOAT, "arrivals": "*i32", "rows": "i32"}
TILE = {"COUNT": 2, "WHOLE": False, "EVEN": True, "HINT": 16, "BLOCK_O": 64, "BLOCK_N": 16}
TILE |= {"BLOCK": 64, "STEP": 128}

#: name -> kernel, types of its arguments, constants, warps
KERNELS: dict[str, tuple[Any, dict[str, Any], dict[str, Any], int]] = {
    "wkv7": (
        wkv7_triton.wkv7_kernel,
        {**VECTORS, **BATCH, "decay": FLOAT, "state": "*fp16", "y": FLOAT},
        {"HEADS": HEADS, "STRIDE": 2**33, "BLOCK_V": 16},
        1,
    ),
    "inputs": (
        wkv7_triton.inputs_kernel,
        INPUTS,
        {"HEADS": HEADS, "GATED": True, "BLOCK_H": 4},
        1,
    ),
    "output": (
        wkv7_triton.output_kernel,
        {"y": FLOAT, "r": ACT, "k": ACT, "v": ACT, "g": ACT, **NORM, "r_k": FLOAT},
        {"HEADS": HEADS, "EPS": 64e-5, "BLOCK_H": 4},
        1,
    ),
    "layer_norm": (shift_triton.layer_norm_kernel, NORM, SIZES, 8),
    "shift_mix": (
        shift_triton.shift_mix_kernel,
        SHIFT,
        {**SIZES, "MIXES": 2, "STRIDE": 4 * WIDTH},
        8,
    ),
    "settle": (
        shift_triton.settle_kernel,
        {"spill": ACT, "shift": ACT, "slots": LONG, "starts": LONG},
        {"STRIDE": 4 * WIDTH, "WIDTH": WIDTH, "BLOCK": WIDTH},
        8,
    ),
    "linear spread": (linear_kernel, PRODUCT, {**TILE, "SPREAD": True}, 4),
    "linear whole": (linear_kernel, PRODUCT, {**TILE, "SPREAD": False}, 4),
}


@cache
def compiled(name: str) -> Any:
    kernel, types, constants, warps = KERNELS[name]
    constants = {**constants, "DEPENDENT": True}
    names = list(kernel.arg_names)
    attributes = {}
    for index, argument in enumerate(names):
        if argument in constants:
            continue
        kinds = types[argument]
        for place, kind in enumerate(kinds if isinstance(kinds, tuple) else (kinds,)):
            if kind.startswith("*") or argument in ("features", "inners"):
                at = (index, place) if isinstance(kinds, tuple) else (index,)
                attributes[at] = [["tt.divisibility", 16]]
    source = ASTSource(
        fn=kernel,
        signature={name: "constexpr" if name in constants else types[name] for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs=attributes,
    )
    options = {"num_warps": warps, "num_stages": 3, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_is_read_or_written_before_the_kernel_before_has_ended(name: str) -> None:
    code = compiled(name).asm["ptx"]
    wait = code.index("griddepcontrol.wait")
    accesses = re.compile(r"\b(?:ld\.global|st\.global|cp\.async\.c|atom\.global|red\.global)")
    first = accesses.search(code)
    assert first
    assert first.start() > wait


@pytest.mark.parametrize("name", KERNELS)
def test_the_compiler_contracts_no_product_with_a_sum(name: str) -> None:
    """Contraction would be the compiler's choice, which may differ from kernel to kernel."""
    fused = compiled(name).asm["ptx"].count("fma.rn.f32")
    # The recurrence writes out two a cell; a program of one warp has 16 x 64 / 32 cells a thread.
    assert fused == (64 if name == "wkv7" else 0)


def test_the_loop_of_a_token_and_the_token_before_carries_both() -> None:
    code = compiled("shift_mix").asm["ttgir"]
    loop = re.search(r"scf\.for .* iter_args\((.*?)\)", code)
    assert loop
    assert loop[1].count("=") == 2


def test_products_run_on_the_tensor_cores() -> None:
    for name in ("linear spread", "linear whole"):
        assert "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16" in compiled(name).asm["ptx"]


def test_a_device_without_dependent_launch_is_known() -> None:
    torch = pytest.importorskip("torch")
    assert not can_depend(torch.device("cpu"))
