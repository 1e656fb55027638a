"""Layer norm and token shift, interpreted."""

from __future__ import annotations

import pytest
import torch

from statevisor.guests.ops_float64 import Float64Ops
from statevisor.guests.ops_triton import TritonOps

ACTS = (torch.float32, torch.float16, torch.bfloat16)
ROUNDING = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
WIDTH = 192  # not a power of two


@pytest.fixture
def ops():
    return TritonOps(torch.device("cpu"), torch.float32)


@pytest.fixture
def norm(draw):
    return 1 + 0.1 * draw(WIDTH), 0.1 * draw(WIDTH), 1e-5


@pytest.mark.parametrize("act", ACTS)
def test_layer_norm_matches_float64(ops, draw, distance, norm, act):
    x = 3 + draw(4, WIDTH, dtype=act)
    got = ops.layer_norm(x, *norm)
    assert got.dtype == act
    assert distance(got, Float64Ops().layer_norm(x, *norm)) < ROUNDING[act]
    assert torch.equal(got[2:3], ops.layer_norm(x[2:3], *norm))


@pytest.mark.parametrize("mixes", [1, 6])
@pytest.mark.parametrize("act", ACTS)
def test_shift_mix_matches_float64(ops, draw, distance, make_batch, norm, act, mixes):
    batch = make_batch([3, 1, 2], [2, 4, 1])
    x, shift = draw(6, WIDTH, dtype=act), draw(5, WIDTH, dtype=act)
    wanted_shift, mix = shift.clone(), torch.rand(mixes, WIDTH)
    got = ops.shift_mix(x, *norm, mix, shift, batch)
    wanted = Float64Ops().shift_mix(x, *norm, mix, wanted_shift, batch)
    assert got.shape == (mixes, 6, WIDTH)
    assert distance(got, wanted) < ROUNDING[act]
    assert distance(shift, wanted_shift) < ROUNDING[act]
    assert torch.equal(shift[[0, 3]], wanted_shift[[0, 3]])


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("lengths", [(1, 1, 1, 1, 1), (2, 3), (4, 1)])
def test_any_split_gives_the_bits_of_one_call(ops, draw, make_batch, norm, act, lengths):
    x, mix = draw(5, WIDTH, dtype=act), torch.rand(6, WIDTH)
    whole = draw(3, WIDTH, dtype=act)
    split = whole.clone()
    wanted = ops.shift_mix(x, *norm, mix, whole, make_batch([5], [1]))
    at, got = 0, []
    for length in lengths:
        piece = x[at : at + length]
        got.append(ops.shift_mix(piece, *norm, mix, split, make_batch([length], [1])))
        at += length
    assert torch.equal(torch.cat(got, dim=1), wanted)
    assert torch.equal(split, whole)


def test_a_row_does_not_see_its_neighbours(ops, draw, make_batch, norm):
    x, mix, start = draw(7, WIDTH), torch.rand(6, WIDTH), draw(WIDTH)
    alone = torch.full((2, WIDTH), torch.nan)
    alone[1] = start
    wanted = ops.shift_mix(x[4:6], *norm, mix, alone, make_batch([2], [1]))
    x[:4], x[6:] = torch.nan, torch.inf
    among = torch.full((9, WIDTH), torch.nan)
    among[7] = start
    got = ops.shift_mix(x, *norm, mix, among, make_batch([1, 3, 2, 1], [0, 3, 7, 0]))
    assert torch.equal(got[:, 4:6], wanted)
    assert torch.equal(among[7], alone[1])
    assert among[[1, 2, 4, 5, 6, 8]].isnan().all()


def test_the_shift_may_be_a_strided_view_of_the_bank(ops, draw, make_batch, norm):
    x, mix, wide = draw(3, WIDTH), torch.rand(2, WIDTH), draw(4, 3, WIDTH)
    before, dense, batch = wide.clone(), wide[:, 1].contiguous(), make_batch([1, 2], [3, 2])
    got = ops.shift_mix(x, *norm, mix, wide[:, 1], batch)
    assert torch.equal(got, ops.shift_mix(x, *norm, mix, dense, batch))
    assert torch.equal(wide[:, 1], dense)
    assert torch.equal(wide[:, [0, 2]], before[:, [0, 2]])


def test_an_unaligned_view_is_refused(ops, draw, norm):
    x = draw(3 * WIDTH + 1)[1:].view(3, WIDTH)
    with pytest.raises(AssertionError, match="multiple of 16"):
        ops.layer_norm(x, *norm)
