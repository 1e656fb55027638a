from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from statevisor.guests.batch import pack
from statevisor.guests.ops_cpu import BLOCK, OTHER_BLOCKS, CpuOps
from statevisor.guests.ops_float64 import Float64Ops
from statevisor.hypervisor.plan import Row

CPU = torch.device("cpu")
WIDTH, HEADS = 128, 2
# Products of fewer than ten columns and an odd inner width are not row-invariant in this library;
# no weight of a model is of that kind, and the check at start would refuse one that is.
shapes = st.sampled_from([(64, 64), (128, 32), (8, 128), (61, 128), (24, 40), (16, 7), (13, 5)])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def batch_of(*lengths: int):
    rows = [Row(slot=slot, tokens=(0,) * length) for slot, length in enumerate(lengths, 1)]
    return pack(rows, CPU)


# -- linear ---------------------------------------------------------------------------------------
@settings(deadline=None, max_examples=40)
@given(
    shape=shapes,
    count=st.integers(1, 300),
    start=st.integers(0, 50),
    admitted=st.booleans(),
    activation=st.sampled_from([None, "tanh", "sigmoid", "relu2"]),
)
def test_a_row_of_a_linear_depends_on_nothing_else(
    shape, count, start, admitted, activation
) -> None:
    ops, weight = CpuOps(), drawn(*shape)
    if admitted:
        ops.admit([weight])
    x = drawn(350, shape[1], seed=1)
    whole = CpuOps().linear(x, weight, activation)
    part = ops.linear(x[start : start + count], weight, activation)
    assert part.shape == (count, shape[0])
    assert torch.equal(part, whole[start : start + count])


def test_a_plain_product_is_not_row_invariant_here() -> None:
    """Else the tests above would show nothing."""
    weight, x = drawn(128, 128), drawn(64, 128, seed=1)
    whole = x @ weight.T
    assert not all(torch.equal((x[at : at + 1] @ weight.T)[0], whole[at]) for at in range(64))


def test_what_stands_in_the_scratch_does_not_matter() -> None:
    ops, weight, x = CpuOps(), drawn(32, 64), drawn(3, 64, seed=1)
    expected = ops.linear(x, weight)
    ops.linear(torch.full((15, 64), torch.nan), weight)
    assert torch.equal(ops.linear(x, weight), expected)


def test_a_row_that_is_not_finite_stays_alone() -> None:
    ops, weight, x = CpuOps(), drawn(32, 64), drawn(40, 64, seed=1)
    expected = ops.linear(x, weight)
    x[17] = torch.nan
    found = ops.linear(x, weight)
    assert found[17].isnan().all()
    assert torch.equal(found[:17], expected[:17])
    assert torch.equal(found[18:], expected[18:])


def test_operands_that_are_strided_or_not_aligned_give_the_same_bits() -> None:
    ops, weight, x = CpuOps(), drawn(32, 64), drawn(20, 64, seed=1)
    expected = ops.linear(x, weight)
    strided = torch.empty(20, 2, 64)
    strided[:, 1] = x
    shifted = torch.empty(20 * 64 + 1)[1:].view(20, 64)
    shifted.copy_(x)
    assert torch.equal(ops.linear(strided[:, 1], weight), expected)
    assert torch.equal(ops.linear(shifted, weight), expected)


def test_results_are_memory_of_their_own() -> None:
    ops, weight = CpuOps(), drawn(32, 64)
    first = ops.linear(drawn(4, 64, seed=1), weight)
    kept = first.clone()
    ops.linear(drawn(4, 64, seed=2), weight)
    assert torch.equal(first, kept)


def test_only_block_sizes_with_equal_bits_are_admitted(monkeypatch) -> None:
    ops, weight = CpuOps(), drawn(128, 128)
    ops.admit([weight])
    assert set(ops.blocks[weight.shape]) <= set(OTHER_BLOCKS)
    monkeypatch.setattr("statevisor.guests.ops_cpu.OTHER_BLOCKS", (1,))
    other = CpuOps()
    other.admit([weight])
    assert other.blocks[weight.shape] == ()  # one row is a matrix-vector product, of other bits


@pytest.mark.parametrize("count", [1, 15, 16, 17, 300])
def test_a_linear_is_near_the_float64_formula(count: int) -> None:
    weight, x = drawn(64, 128, scale=0.1), drawn(count, 128, seed=1)
    for activation in (None, "tanh", "sigmoid", "relu2"):
        found = CpuOps().linear(x, weight, activation).double()
        expected = Float64Ops().linear(x, weight, activation)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


# -- elementwise ----------------------------------------------------------------------------------
def step_inputs(count: int) -> dict[str, torch.Tensor]:
    names = ("w", "k", "v", "a", "v_gate", "v_first", "r", "g")
    return {name: drawn(count, WIDTH, seed=seed) for seed, name in enumerate(names)}


VECTORS = {name: drawn(WIDTH, seed=50 + i) for i, name in enumerate(("w0", "a0", "v0", "kk", "ka"))}


def inputs(ops, x: dict[str, torch.Tensor], first_layer: bool = False):
    return ops.wkv7_inputs(
        x["w"],
        x["k"],
        x["v"],
        x["a"],
        None if first_layer else x["v_gate"],
        None if first_layer else x["v_first"],
        VECTORS["w0"],
        VECTORS["a0"],
        None if first_layer else VECTORS["v0"],
        VECTORS["kk"],
        VECTORS["ka"],
        HEADS,
    )


def output(ops, x: dict[str, torch.Tensor], y: torch.Tensor) -> torch.Tensor:
    headed = [x[name].view(-1, HEADS, 64) for name in ("r", "k", "v")]
    r_k = drawn(HEADS, 64, seed=60)
    return ops.wkv7_output(y, *headed, x["g"], VECTORS["w0"], VECTORS["a0"], r_k, 64e-5)


@settings(deadline=None, max_examples=25)
@given(count=st.integers(1, 40), start=st.integers(0, 20), threads=st.integers(1, 3))
def test_elementwise_rows_do_not_depend_on_their_number(count, start, threads) -> None:
    torch.set_num_threads(threads)
    ops, whole = CpuOps(), step_inputs(600)  # the whole is wide enough to be cut among threads
    part = {name: x[start : start + count] for name, x in whole.items()}
    y = drawn(600, HEADS, 64, seed=61)
    for found, expected in zip(inputs(ops, part), inputs(ops, whole), strict=True):
        assert torch.equal(found, expected[start : start + count])
    rows = slice(start, start + count)
    assert torch.equal(output(ops, part, y[rows]), output(ops, whole, y)[rows])
    normed = ops.layer_norm(whole["r"], VECTORS["w0"], VECTORS["a0"], 1e-5)
    part_normed = ops.layer_norm(part["r"], VECTORS["w0"], VECTORS["a0"], 1e-5)
    assert torch.equal(part_normed, normed[rows])


@pytest.mark.parametrize("first_layer", [True, False])
def test_elementwise_operators_are_near_the_float64_formulas(first_layer: bool) -> None:
    x, y = step_inputs(19), drawn(19, HEADS, 64, seed=61)
    found = (*inputs(CpuOps(), x, first_layer), output(CpuOps(), x, y))
    expected = (*inputs(Float64Ops(), x, first_layer), output(Float64Ops(), x, y))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=1e-5)


def test_operators_do_not_change_what_they_are_given() -> None:
    x, y = step_inputs(3), drawn(3, HEADS, 64, seed=61)
    kept = {name: tensor.clone() for name, tensor in x.items()}
    inputs(CpuOps(), x)
    before = y.clone()
    output(CpuOps(), x, y)
    assert torch.equal(y, before)
    for name, tensor in x.items():
        assert torch.equal(tensor, kept[name]), name


def test_a_key_of_zeros_has_a_direction_of_zeros() -> None:
    x = step_inputs(2)
    x["k"] = torch.zeros_like(x["k"])
    kk = inputs(CpuOps(), x)[3]
    assert torch.equal(kk, torch.zeros_like(kk))


# -- with the bank --------------------------------------------------------------------------------
@pytest.mark.parametrize("lengths", [(1,), (3,), (1, 1, 1), (4, 1, 2), (1, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_operators_on_the_bank_are_near_the_float64_formulas(lengths, dtype) -> None:
    batch, count = batch_of(*lengths), sum(lengths)
    x, slots = step_inputs(count), len(lengths) + 2
    states = [drawn(slots, HEADS, 64, 64, seed=70, scale=0.1).to(dtype) for _ in range(2)]
    shifts = [drawn(slots, WIDTH, seed=71) for _ in range(2)]
    mixes = drawn(3, WIDTH, seed=72)
    found = []
    for ops, state, shift in zip((CpuOps(), Float64Ops()), states, shifts, strict=True):
        decay, k, v, kk, a = inputs(ops, x)
        y = ops.wkv7(x["r"].view(k.shape), decay, k, v, kk, a, state, batch)
        norm = (VECTORS["w0"], VECTORS["a0"], 1e-5)
        mixed = ops.shift_mix(x["r"], *norm, mixes, shift, batch)
        found.append([t.double() for t in (y, mixed, state, shift)])
    tolerance = 2e-5 if dtype == torch.float32 else 5e-3
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_the_recurrence_writes_no_slot_but_those_of_the_batch() -> None:
    batch, x = batch_of(2, 1), step_inputs(3)
    state = torch.full((5, HEADS, 64, 64), torch.nan)
    state[1:3] = 0.0
    shift = torch.full((5, WIDTH), torch.nan)
    shift[1:3] = 0.0
    decay, k, v, kk, a = inputs(CpuOps(), x)
    CpuOps().wkv7(x["r"].view(k.shape), decay, k, v, kk, a, state, batch)
    CpuOps().shift_mix(x["r"], VECTORS["w0"], VECTORS["a0"], 1e-5, drawn(2, WIDTH), shift, batch)
    for part in (state, shift):
        assert part[1:3].isfinite().all()
        assert part[[0, 3, 4]].isnan().all()


def test_a_16_bit_state_is_rounded_after_every_token() -> None:
    x = step_inputs(6)
    whole = drawn(2, HEADS, 64, 64, scale=0.1).half()
    parted = whole.clone()
    decay, k, v, kk, a = inputs(CpuOps(), x)
    operands = (x["r"].view(k.shape), decay, k, v, kk, a)
    y = CpuOps().wkv7(*operands, whole, batch_of(6))
    for at in range(6):
        part = CpuOps().wkv7(*(t[at : at + 1] for t in operands), parted, batch_of(1))
        assert torch.equal(part, y[at : at + 1])
    assert torch.equal(whole, parted)


# -- the build ------------------------------------------------------------------------------------
def test_the_fingerprint_tells_what_fixes_the_bits() -> None:
    facts = CpuOps(threads=1).fingerprint()
    assert facts["torch"] == torch.__version__
    assert facts["threads"] == "1"
    assert facts["block"] == str(BLOCK)
    assert "capability" in facts
    assert CpuOps(threads=2).fingerprint() != facts
