"""The kernels compiled for a Hopper GPU, which needs no GPU: what the machine code must show.

The interpreter runs the text of a kernel; a compiler may still change its meaning (triton 3.6 once
took two values carried by a loop for one) or its order. These tests read what it made.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from statevisor.guests.families.rwkv7_fused import (  # noqa: E402
    FEW_PROMPT_WARPS,
    FEW_TIME_WARPS,
    PROMPT_HEADS,
    PROMPT_WARPS,
    WALKS,
)
from statevisor.guests.launch_triton import EARLY, LATE, can_depend  # noqa: E402
from statevisor.guests.linear_triton import linear_kernel  # noqa: E402
from statevisor.guests.mixers import shift_triton, time_triton, wkv7_triton  # noqa: E402
from statevisor.guests.sparse_triton import sparse_kernel  # noqa: E402
from statevisor.guests.stacks_triton import stack_kernel  # noqa: E402

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

RESIDUAL = {**SHIFT, "ids": LONG, "parts": FLOAT, "out_x": ACT, "lasts": LONG}
RESIDUAL_SIZES = {**SIZES, "GATHER": False, "PARTS": 4, "MIXES": 2, "STRIDE": 4 * WIDTH}
TIME = dict.fromkeys(("downs", "ups", "first", "out"), ACT)
TIME |= dict.fromkeys(("vectors", "y_out", "y_in", "keys", "bonus"), FLOAT)
TIME |= {"state": "*fp16", "slots": LONG, "starts": LONG, "rows": "i32"}
TIME_SIZES = {"HEADS": HEADS, "STRIDE": 2**33, "PITCH": 1344, "GATED": True, "EPS": 64e-5}
TIME_SIZES |= {"WIDE": True, "BLOCK_H": PROMPT_HEADS, "WARPS": 1}
#: Rows under way of a program that walks, by the state's type.
WALKED = {state: walked for state, (walked, _) in WALKS.items()}
STACK = {"x": "tensordesc<bf16[16, 128]>", "weight": "tensordesc<bf16[64, 128]>"}
STACK |= {"memory": ACT, "rows": "i32"}
STACK_SIZES = {"BEGINS": (0, 64), "WIDTHS": (64, 192), "PLANES": (0, 1), "COLUMNS": (0, 0)}
STACK_SIZES |= {"INNERS": (256, 256), "UNIFORM": True, "WIDEST": 256, "CODES": (0, 1)}
STACK_SIZES |= {"PITCH": 256, "LENGTH": 128, "AHEAD": 128}
STACK_SIZES |= {"BLOCK_O": 64, "BLOCK_N": 16, "STEP": 128}

SPARSE = {"x": "tensordesc<bf16[16, 128]>", "values": ACT, "channels": ACT, "out": FLOAT}
SPARSE_SIZES = {"WIDTH": 256, "INNER": 2048, "SEGMENTS": 2, "LENGTH": 1024}
SPARSE_SIZES |= {"TURNS": 8, "BLOCK_O": 64, "BLOCK_N": 16, "STEP": 128}

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
    "layer_norm 4 warps": (shift_triton.layer_norm_kernel, NORM, SIZES, 4),
    "settle": (
        shift_triton.settle_kernel,
        {"spill": ACT, "shift": ACT, "slots": LONG, "starts": LONG},
        {"STRIDE": 4 * WIDTH, "WIDTH": WIDTH, "BLOCK": WIDTH},
        8,
    ),
    "linear spread": (linear_kernel, PRODUCT, {**TILE, "SPREAD": True}, 4),
    "linear whole": (linear_kernel, PRODUCT, {**TILE, "SPREAD": False}, 4),
    "residual single": (
        shift_triton.residual_mix_kernel,
        RESIDUAL,
        {**RESIDUAL_SIZES, "SINGLE": True, "EARLY": True},
        8,
    ),
    "residual mix": (
        shift_triton.residual_mix_kernel,
        RESIDUAL,
        {**RESIDUAL_SIZES, "SINGLE": False, "EARLY": False},
        8,
    ),
    "residual norm": (shift_triton.residual_norm_kernel, RESIDUAL, RESIDUAL_SIZES, 8),
    "token": (time_triton.token_kernel, TIME, {**TIME_SIZES, "STAGES": 1}, 1),
    "token of few": (
        time_triton.token_kernel,
        TIME,
        {**TIME_SIZES, "STAGES": 1, "WARPS": FEW_TIME_WARPS},
        FEW_TIME_WARPS,
    ),
    "tokens walked": (
        time_triton.token_kernel,
        TIME,
        {**TIME_SIZES, "STAGES": WALKED[torch.float16]},
        1,
    ),
    "token float32": (
        time_triton.token_kernel,
        {**TIME, "state": FLOAT},
        {**TIME_SIZES, "STAGES": 1},
        1,
    ),
    "token of few float32": (
        time_triton.token_kernel,
        {**TIME, "state": FLOAT},
        {**TIME_SIZES, "STAGES": 1, "WARPS": FEW_TIME_WARPS},
        FEW_TIME_WARPS,
    ),
    "tokens walked float32": (
        time_triton.token_kernel,
        {**TIME, "state": FLOAT},
        {**TIME_SIZES, "STAGES": WALKED[torch.float32]},
        1,
    ),
    "prompt keys": (time_triton.prompt_keys_kernel, TIME, TIME_SIZES, PROMPT_HEADS),
    "prompt": (time_triton.prompt_kernel, TIME, TIME_SIZES, PROMPT_WARPS),
    "prompt of few": (time_triton.prompt_kernel, TIME, TIME_SIZES, FEW_PROMPT_WARPS),
    "prompt float32": (
        time_triton.prompt_kernel,
        {**TIME, "state": FLOAT},
        {**TIME_SIZES, "WIDE": False},
        PROMPT_WARPS,
    ),
    "prompt output": (time_triton.prompt_output_kernel, TIME, TIME_SIZES, PROMPT_HEADS),
    "stack": (
        stack_kernel,
        {**STACK, "out": ACT},
        {**STACK_SIZES, "SEGMENTS": 1, "SPREAD": False},
        4,
    ),
    "stack planes": (
        stack_kernel,
        {**STACK, "out": FLOAT},
        {**STACK_SIZES, "SEGMENTS": 2, "SPREAD": True},
        4,
    ),
    "sparse": (sparse_kernel, SPARSE, SPARSE_SIZES, 4),
}

#: Kernels that read before their turn what nothing of their pass writes earlier: vectors, slots,
#: the state or shift of their own layer, or weights into a cache.
EARLY_READS = {"residual single", "residual mix", "token", "token of few", "tokens walked"}
EARLY_READS |= {"token float32", "token of few float32", "tokens walked float32"}
EARLY_READS |= {"prompt keys", "prompt output"}


#: Kernels of a pass of many single tokens.
LATE_LAUNCHES = ("residual single", "residual norm", "stack", "stack planes")
LATE_LAUNCHES += ("token", "token float32", "tokens walked", "tokens walked float32")


@cache
def compiled(name: str, dependent: int = EARLY.value) -> Any:
    kernel, types, constants, warps = KERNELS[name]
    constants = {**constants, "DEPENDENT": dependent}
    names = list(kernel.arg_names)
    constants = {name: value for name, value in constants.items() if name in names}
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
    reads = "" if name in EARLY_READS else r"ld\.global|"
    accesses = re.compile(
        rf"\b(?:{reads}st\.global|cp\.async\.c|cp\.async\.bulk\.tensor|atom\.global|red\.global)"
    )
    first = accesses.search(code)
    assert first
    assert first.start() > wait


@pytest.mark.parametrize(
    ("name", "vectors", "others"),
    [
        # a slot, and a state of 64 x 64 in 16 bits, of which a lane asks for 16 bytes at a time
        ("token", 8, 1 + 64 * 64 * 2 // (32 * 16)),
        ("token float32", 8, 1 + 64 * 64 * 4 // (32 * 16)),
        # the slots of all rows, and the first once more to ask for its state
        ("tokens walked", 8, 2 + 1),
        # a slot and a shift
        ("residual single", 4, 1 + 1),
        ("residual mix", 2, 0),
    ],
)
def test_only_what_the_pass_does_not_write_is_read_early(
    name: str, vectors: int, others: int
) -> None:
    """Each vector is a load of one instruction at this width."""
    code = compiled(name).asm["ptx"]
    early = code[: code.index("griddepcontrol.wait")]
    assert early.count("ld.global") == vectors + others


@pytest.mark.parametrize("name", LATE_LAUNCHES)
def test_a_late_launch_lets_the_next_kernel_go_once_and_behind_the_wait(name: str) -> None:
    early, late = compiled(name).asm["ptx"], compiled(name, LATE.value).asm["ptx"]
    for code in (early, late):
        assert code.count("griddepcontrol.launch_dependents") == 1
    assert early.index("griddepcontrol.launch_dependents") < early.index("griddepcontrol.wait")
    assert late.index("griddepcontrol.wait") < late.index("griddepcontrol.launch_dependents")


def test_a_program_that_walks_has_the_copies_of_two_rows_under_way() -> None:
    """The first wait for copies comes behind those of two rows, and lets the second's go on."""
    code = compiled("tokens walked").asm["ptx"]
    wait = re.search(r"cp\.async\.wait_group\s+(?:0x)?(\d+)", code)
    assert wait
    before = code[: wait.start()]
    # a state of 64 x 64 in 16 bits takes one warp 16 copies of 16 bytes a lane
    assert len(re.findall(r"cp\.async\.cg\.shared\.global [^;]*, 0x10,", before)) == 2 * 16
    assert int(wait[1]) >= 4


def test_weights_are_asked_for_before_the_turn() -> None:
    for name in ("stack", "stack planes"):
        code = compiled(name).asm["ptx"]
        ask = code.index("cp.async.bulk.prefetch.L2.global")
        assert ask < code.index("griddepcontrol.wait") < code.index("cp.async.bulk.tensor")


@pytest.mark.parametrize("name", KERNELS)
def test_the_compiler_contracts_no_product_with_a_sum(name: str) -> None:
    """Contraction would be the compiler's choice, which may differ from kernel to kernel."""
    fused = compiled(name).asm["ptx"].count("fma.rn.f32")
    # The recurrence writes out two a cell, of rows of 64 shared by 32 threads a warp; prompts have
    # it three times, for two tokens and for a last one. A head's norm has two a channel it holds.
    cells = {"wkv7": 16, "token": 64, "tokens walked": 64, "token float32": 64}
    cells |= {"tokens walked float32": 64}
    cells |= dict.fromkeys(("token of few", "token of few float32"), 64 // FEW_TIME_WARPS)
    cells |= dict.fromkeys(("prompt", "prompt float32"), 3 * 16 // PROMPT_WARPS)
    cells["prompt of few"] = 3 * 16 // FEW_PROMPT_WARPS
    held = {"token": 16, "tokens walked": 16, "token of few": 16 // FEW_TIME_WARPS}
    held |= {"token float32": 32, "tokens walked float32": 32, "prompt output": 2}
    held |= {"token of few float32": 32 // FEW_TIME_WARPS}
    assert fused == 2 * (cells.get(name, 0) * 64 // 32 + held.get(name, 0))


def reductions(name: str) -> set[tuple[str, str, str]]:
    """(axis, tile, layout) of every sum of floats over channels in a kernel.

    Sums of integers and greatest values have no order, and are left out.
    """
    code = compiled(name).asm["ttgir"]
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", code, re.M))
    found = re.findall(
        r'"tt\.reduce"\(.*?axis = (\d)(.*?)\) : \(tensor<([^,]*), (.*?)>\) ->', code, re.S
    )

    def spelled(layout: str) -> str:
        return re.sub(r"#\w+", lambda match: layouts.get(match[0], match[0]), layout)

    return {
        (axis, tile, spelled(layout)) for axis, body, tile, layout in found if "arith.addf" in body
    }


def lanes(name: str) -> set[tuple[int, int, int]]:
    """Of every sum in `reductions`: its length, channels side by side in a thread, threads.

    Rows of a tile, which it does not cross, may be any warp's and as many as there are.
    """
    found = set()
    for axis, tile, layout in reductions(name):
        length = int(tile.split("x")[int(axis)])
        each, threads, warps = (
            int(re.search(rf"{key} = \[([\d, ]+)\]", layout)[1].split(",")[int(axis)])
            for key in ("sizePerThread", "threadsPerWarp", "warpsPerCTA")
        )
        assert warps == 1, f"a sum of {name} is shared by warps: {layout}"
        found.add((length, each, threads))
    return found


@pytest.mark.parametrize(
    ("ways", "see"),
    [
        (
            [
                ["token"],
                ["token of few"],
                ["tokens walked"],
                ["prompt keys", "prompt", "prompt output"],
                ["prompt keys", "prompt of few", "prompt output"],
            ],
            lanes,
        ),
        (
            [
                ["token float32"],
                ["token of few float32"],
                ["tokens walked float32"],
                ["prompt keys", "prompt float32", "prompt output"],
            ],
            lanes,
        ),
        ([["residual single"], ["residual mix"], ["residual norm"]], reductions),
    ],
    ids=["token", "token float32", "residual"],
)
def test_kernels_that_must_agree_sum_over_one_layout(ways, see) -> None:
    """The order of a sum follows from its layout: so decode and prompts add alike."""
    first, *others = (set().union(*map(see, kernels)) for kernels in ways)
    assert first
    assert all(other == first for other in others)


def test_another_number_of_warps_is_another_order() -> None:
    """What the comparison above would see if one kernel were launched otherwise."""
    assert reductions("residual norm") != reductions("layer_norm 4 warps")


def test_the_loop_of_a_token_and_the_token_before_carries_both() -> None:
    code = compiled("shift_mix").asm["ttgir"]
    loop = re.search(r"scf\.for .* iter_args\((.*?)\)", code)
    assert loop
    assert loop[1].count("=") == 2


def test_products_run_on_the_tensor_cores() -> None:
    for name in ("linear spread", "linear whole", "stack", "stack planes", "sparse"):
        assert "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16" in compiled(name).asm["ptx"]


def test_a_device_without_dependent_launch_is_known() -> None:
    torch = pytest.importorskip("torch")
    assert not can_depend(torch.device("cpu"))
