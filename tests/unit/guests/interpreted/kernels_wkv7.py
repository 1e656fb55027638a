"""The recurrence and the elementwise kernels around it, interpreted."""

from __future__ import annotations

import mmap

import pytest
import torch

from statevisor.guests.mixers.wkv7_triton import wkv7_kernel
from statevisor.guests.ops_float64 import Float64Ops
from statevisor.guests.ops_triton import TritonOps

HEADS, SIZE = 2, 64
ACTS = (torch.float32, torch.float16, torch.bfloat16)
STATES = (torch.float32, torch.float16)
ROUNDING = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.fixture
def ops():
    return TritonOps(torch.device("cpu"), torch.float32)


@pytest.fixture
def vectors(draw):
    """(tokens, act) -> r, decay, k, v, kk, a as the recurrence gets them."""

    def vectors(tokens, act=torch.float32):
        r, k, v, kk = (draw(tokens, HEADS, SIZE, dtype=act) for _ in range(4))
        kk = torch.nn.functional.normalize(kk.float(), dim=-1).to(act)
        decay = 0.55 + 0.45 * torch.sigmoid(draw(tokens, HEADS, SIZE))
        a = torch.sigmoid(draw(tokens, HEADS, SIZE)).to(act)
        return r, decay, k, v, kk, a

    return vectors


def cut(parts, tokens):
    return tuple(part[tokens].contiguous() for part in parts)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("act", ACTS)
def test_recurrence_matches_float64(ops, vectors, make_batch, draw, distance, act, state):
    batch = make_batch([3, 1, 2], [2, 4, 1])
    bank = draw(5, HEADS, SIZE, SIZE, dtype=state)
    wanted_bank = bank.clone()
    parts = vectors(6, act)
    y = ops.wkv7(*parts, bank, batch)
    wanted = Float64Ops().wkv7(*parts, wanted_bank, batch)
    assert y.dtype == torch.float32
    # A 16-bit state may round the other way where float32 and float64 fall on two sides.
    assert distance(y, wanted) < (1e-6 if state == torch.float32 else 1e-4)
    assert distance(bank, wanted_bank) < (1e-6 if state == torch.float32 else 1e-3)
    untouched = [0, 3]
    assert torch.equal(bank[untouched], wanted_bank[untouched])


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("lengths", [(1, 1, 1, 1), (3, 1)])
def test_any_split_gives_the_bits_of_one_launch(ops, vectors, make_batch, draw, state, lengths):
    parts = vectors(4)
    whole, split = (draw(3, HEADS, SIZE, SIZE, dtype=state) for _ in range(2))
    split.copy_(whole)
    y = ops.wkv7(*parts, whole, make_batch([4], [2]))
    at, ys = 0, []
    for length in lengths:
        piece = cut(parts, slice(at, at + length))
        ys.append(ops.wkv7(*piece, split, make_batch([length], [2])))
        at += length
    assert torch.equal(y, torch.cat(ys))
    assert torch.equal(whole, split)


def test_a_half_state_that_is_rounded_once_a_launch_would_be_seen(ops, vectors, make_batch, draw):
    parts = vectors(5)
    stepped = draw(2, HEADS, SIZE, SIZE, dtype=torch.float16)
    whole = stepped.float()
    ops.wkv7(*parts, whole, make_batch([5], [1]))
    for at in range(5):
        ops.wkv7(*cut(parts, slice(at, at + 1)), stepped, make_batch([1], [1]))
    assert not torch.equal(whole[1].half(), stepped[1])


@pytest.mark.parametrize("state", STATES)
def test_a_row_does_not_see_its_neighbours(ops, vectors, make_batch, draw, state):
    parts = vectors(7)
    start = draw(SIZE * SIZE * HEADS, dtype=state).view(HEADS, SIZE, SIZE)
    alone = torch.full((2, HEADS, SIZE, SIZE), torch.nan, dtype=state)
    alone[1] = start
    y = ops.wkv7(*cut(parts, slice(4, 6)), alone, make_batch([2], [1]))

    poisoned = tuple(part.clone() for part in parts)
    for part in poisoned:
        part[:4] = torch.nan
        part[6:] = torch.inf
    among = torch.full((9, HEADS, SIZE, SIZE), torch.nan, dtype=state)
    among[7] = start
    among_y = ops.wkv7(*poisoned, among, make_batch([1, 3, 2, 1], [0, 3, 7, 0]))
    assert torch.equal(among_y[4:6], y)
    assert torch.equal(among[7], alone[1])
    assert among[[1, 2, 4, 5, 6, 8]].isnan().all()


def test_padding_rows_write_the_padding_slot_only(ops, vectors, make_batch, draw):
    bank = draw(4, HEADS, SIZE, SIZE)
    before = bank.clone()
    ops.wkv7(*vectors(3), bank, make_batch([1, 1, 1], [0, 0, 0]))
    assert torch.equal(bank[1:], before[1:])
    assert not torch.equal(bank[0], before[0])


def test_the_bank_may_be_a_strided_view(ops, vectors, make_batch, draw):
    parts = vectors(2)
    wide = draw(4, 3, HEADS, SIZE, SIZE)
    before, dense = wide.clone(), wide[:, 1].contiguous()
    batch = make_batch([2], [3])
    assert torch.equal(ops.wkv7(*parts, wide[:, 1], batch), ops.wkv7(*parts, dense, batch))
    assert torch.equal(wide[:, 1], dense)
    assert torch.equal(wide[:, [0, 2]], before[:, [0, 2]])


def test_offsets_past_2_to_31_elements_are_reached(vectors, make_batch, draw):
    stride = 2**31 + 64
    cells = HEADS * SIZE * SIZE
    start = draw(HEADS, SIZE, SIZE)
    parts, batch = vectors(2), make_batch([2], [1])
    near = torch.stack([torch.zeros_like(start), start])
    wanted = TritonOps(torch.device("cpu"), torch.float32).wkv7(*parts, near, batch)

    # Address space without memory behind it, but for the pages that are touched.
    with mmap.mmap(-1, 4 * (stride + cells)) as space:
        first = torch.frombuffer(space, dtype=torch.float32, count=cells)
        far = torch.frombuffer(space, dtype=torch.float32, count=cells, offset=4 * stride)
        far.copy_(start.flatten())
        y = torch.empty_like(wanted)
        wkv7_kernel[(HEADS * 4, 1)](
            *parts,
            first,
            y,
            batch.slots,
            batch.starts,
            HEADS=HEADS,
            STRIDE=stride,
            BLOCK_V=16,
            DEPENDENT=False,
        )
        assert torch.equal(y, wanted)
        assert torch.equal(far.view_as(start), near[1])
        assert not first.any()
        del first, far


@pytest.mark.parametrize("heads", [1, 2, 5])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("act", ACTS)
def test_inputs_match_float64(ops, draw, distance, act, gated, heads):
    rows, width = 3, heads * SIZE
    w, k, v, a, gate, first = (draw(rows, width, dtype=act) for _ in range(6))
    w0, a0, v0, k_k, k_a = (draw(width) for _ in range(5))
    residual = (gate, first) if gated else (None, None)
    vectors = (w0, a0, v0 if gated else None, k_k, k_a)
    got = ops.wkv7_inputs(w, k, v, a, *residual, *vectors, heads)
    wanted = Float64Ops().wkv7_inputs(w, k, v, a, *residual, *vectors, heads)
    assert [part.dtype for part in got] == [torch.float32, act, act, act, act]
    for index, (one, other) in enumerate(zip(got, wanted, strict=True)):
        assert one.shape == (rows, heads, SIZE)
        assert distance(one, other) < (1e-6 if index == 0 else ROUNDING[act])
    if not gated:
        assert torch.equal(got[2].flatten(1), v)


def test_a_key_of_zeros_is_normalised_to_zeros_and_a_nan_stays(ops, draw):
    parts = [draw(2, SIZE) for _ in range(4)]
    parts[1][0] = 0.0
    parts[1][1, 5] = torch.nan
    kk = ops.wkv7_inputs(
        *parts,
        None,
        None,
        *(draw(SIZE) for _ in range(2)),
        None,
        *(draw(SIZE) for _ in range(2)),
        1,
    )[3]
    assert not kk[0].any()
    assert kk[1].isnan().all()


@pytest.mark.parametrize("act", ACTS)
def test_output_matches_float64(ops, draw, distance, act):
    rows, heads = 3, 5
    y = draw(rows, heads, SIZE)
    r, k, v = (draw(rows, heads, SIZE, dtype=act) for _ in range(3))
    g = draw(rows, heads * SIZE, dtype=act)
    vectors = (draw(heads * SIZE), draw(heads * SIZE), draw(heads, SIZE))
    got = ops.wkv7_output(y, r, k, v, g, *vectors, 64e-5)
    assert got.dtype == act
    assert distance(got, Float64Ops().wkv7_output(y, r, k, v, g, *vectors, 64e-5)) < ROUNDING[act]


def test_elementwise_rows_do_not_see_each_other(ops, draw):
    rows, width = 5, HEADS * SIZE
    parts = [draw(rows, width) for _ in range(6)]
    vectors = [draw(width) for _ in range(5)]
    y, r, k, v = (draw(rows, HEADS, SIZE) for _ in range(4))
    g, r_k = draw(rows, width), draw(HEADS, SIZE)
    inputs = ops.wkv7_inputs(*parts, *vectors, HEADS)
    output = ops.wkv7_output(y, r, k, v, g, *vectors[:2], r_k, 64e-5)
    for tensor in (*parts, y, r, k, v, g):
        tensor[[0, 1, 2, 4]] = torch.nan
    for one, other in zip(inputs, ops.wkv7_inputs(*parts, *vectors, HEADS), strict=True):
        assert torch.equal(one[3], other[3])
    again = ops.wkv7_output(*cut((y, r, k, v, g), slice(3, 4)), *vectors[:2], r_k, 64e-5)
    assert torch.equal(output[3:4], again)
