"""Every kernel on the device: against float64, and the same bits for every number of rows."""

from __future__ import annotations

from itertools import product

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from statevisor.guests.batch import pack
from statevisor.guests.linear_triton import Tile, TritonLinear
from statevisor.guests.ops_float64 import Float64Ops
from statevisor.guests.ops_triton import TritonOps
from statevisor.hypervisor.plan import Row

ACTS = (torch.bfloat16, torch.float16, torch.float32)
STATES = (torch.float32, torch.float16)
#: Relative distance that rounding once to the dtype explains.
ROUNDING = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
HEADS, SIZE = 8, 64
ODD = range(1, 301, 2)
ROWS = 301

#: (O, K) of the 1.5B geometry, of larger ones and of odd sizes.
LARGE = [(2048, 2048), (8192, 2048), (2048, 8192), (65536, 2048), (96, 2048), (256, 2048)]
LARGE += [(64, 2048), (2048, 96), (2048, 256), (2048, 64), (4096, 4096)]
SMALL = [(256, 256), (768, 256), (256, 768), (32, 256), (256, 16), (100, 72)]
TILES = [
    Tile.parse(cut + spread)
    for cut, spread in product(
        (
            "64x16x64w4s5",
            "64x16x128w4s4",
            "64x16x256w4s3",
            "64x32x64w4s5",
            "64x64x128w4s3",
            "64x128x64w4s4",
            "128x128x64w8s4",
        ),
        ("", "+"),
    )
]


@pytest.fixture
def batch(device):
    """(lengths, slots) -> a batch; token ids are not used."""

    def batch(lengths, slots):
        rows = [
            Row(slot=slot, tokens=(0,) * length)
            for length, slot in zip(lengths, slots, strict=True)
        ]
        return pack(rows, device)

    return batch


def make_ops(device, act):
    return TritonOps(device, act)


@pytest.mark.parametrize(("act", "shapes"), [(ACTS[0], LARGE), (ACTS[1], LARGE), (ACTS[2], SMALL)])
def test_linear_rows_have_the_same_bits_for_every_row_count(device, draw, distance, act, shapes):
    linear = TritonLinear(device)
    for features, inner in shapes:
        x = draw(1024, inner, dtype=act)
        weight = (draw(features, inner) / inner**0.5).to(act)
        whole = linear(x, weight)
        some = whole[:64].double()
        assert distance(some, x[:64].double() @ weight.double().T) < ROUNDING[act]
        for rows in (*ODD, 2, 16, 64, 128, 256, 512):
            got = linear(x[:rows], weight)
            assert torch.equal(got, whole[:rows]), (features, inner, rows)
        for rows in (1, 17, 129, 300):
            # Beginning at every other place of a tile.
            begin = 1024 - rows
            got = linear(x[begin:].contiguous(), weight)
            assert torch.equal(got, whole[begin:]), (features, inner, rows)
        assert not linear._arrivals.any()


@pytest.mark.parametrize("shape", [(2048, 2048), (2048, 8192), (96, 2048), (100, 72)])
def test_linear_has_the_same_bits_for_every_tile(device, draw, shape):
    linear = TritonLinear(device)
    x, weight = draw(200, shape[1], dtype=torch.bfloat16), draw(*shape, dtype=torch.bfloat16)
    wanted = linear(x, weight)
    linears = [linear, TritonLinear(device, dependent=False)]
    for tile, linear in product(TILES, linears):
        assert torch.equal(linear.group([(x, weight, None)], tile)[0], wanted), str(tile)


@pytest.mark.parametrize("act", ACTS)
def test_linear_groups_and_activations(device, draw, distance, act):
    ops, reference = make_ops(device, act), Float64Ops(device)
    sizes = [(512, 512, None), (96, 512, "tanh"), (64, 512, "sigmoid"), (768, 256, "relu2")]
    for rows in (1, 5, 40, 150, 700):
        products = [
            (draw(rows, k, dtype=act), (draw(o, k) / k**0.5).to(act), kind) for o, k, kind in sizes
        ]
        for one, got in zip(products, ops.linears(products), strict=True):
            assert torch.equal(got, ops.linear(*one))
            assert distance(got, reference.linear(*one)) < ROUNDING[act]


def test_linear_repeated_gives_the_same_bits(device, draw):
    linear = TritonLinear(device)
    x, weight = draw(8, 2048, dtype=torch.bfloat16), draw(2048, 2048, dtype=torch.bfloat16)
    wanted = linear(x, weight)
    assert all(torch.equal(linear(x, weight), wanted) for _ in range(500))


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("width", [64, 256, 768, 2048])
def test_norm_and_shift(device, draw, distance, batch, act, width):
    ops, reference = make_ops(device, act), Float64Ops(device)
    x, shift = draw(ROWS, width, dtype=act), draw(ROWS + 1, width, dtype=act)
    norm = (1 + 0.1 * draw(width), 0.1 * draw(width), 1e-5)
    mixes = draw(6, width).sigmoid()
    whole = ops.layer_norm(x, *norm)
    assert distance(whole, reference.layer_norm(x, *norm)) < ROUNDING[act]

    slots = list(range(1, ROWS + 1))
    before, kept = shift.clone(), shift.clone()
    mixed = ops.shift_mix(x, *norm, mixes, shift, batch([1] * ROWS, slots))
    wanted = reference.shift_mix(x, *norm, mixes, kept, batch([1] * ROWS, slots))
    assert distance(mixed, wanted) < 2 * ROUNDING[act]
    assert distance(shift, kept) < ROUNDING[act]
    ragged = batch([3, 1, 2, 295], [2, 4, 7, 5])
    mine, theirs = before.clone(), before.clone()
    mixed_ragged = ops.shift_mix(x, *norm, mixes, mine, ragged)
    wanted = reference.shift_mix(x, *norm, mixes, theirs, ragged)
    assert distance(mixed_ragged, wanted) < 2 * ROUNDING[act]
    assert distance(mine, theirs) < ROUNDING[act]
    for rows in ODD:
        assert torch.equal(ops.layer_norm(x[:rows], *norm), whole[:rows])
        fresh = before.clone()
        got = ops.shift_mix(x[:rows], *norm, mixes, fresh, batch([1] * rows, slots[:rows]))
        assert torch.equal(got, mixed[:, :rows])
        assert torch.equal(fresh[1 : rows + 1], shift[1 : rows + 1])
        assert torch.equal(fresh[rows + 1 :], before[rows + 1 :])


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("width", [256, 2048])
def test_shift_split_gives_the_bits_of_one_call(device, draw, batch, act, width):
    ops = make_ops(device, act)
    norm = (1 + 0.1 * draw(width), 0.1 * draw(width), 1e-5)
    x, mixes = draw(40, width, dtype=act), draw(6, width).sigmoid()
    whole = draw(3, width, dtype=act)
    for lengths in ([1] * 40, [39, 1], [1, 39], [7, 13, 20]):
        one, many = whole.clone(), whole.clone()
        wanted = ops.shift_mix(x, *norm, mixes, one, batch([40], [2]))
        at, parts = 0, []
        for length in lengths:
            piece = x[at : at + length].contiguous()
            parts.append(ops.shift_mix(piece, *norm, mixes, many, batch([length], [2])))
            at += length
        assert torch.equal(torch.cat(parts, 1), wanted)
        assert torch.equal(one, many)


def vectors(draw, tokens, act, heads=HEADS):
    r, k, v, kk = (draw(tokens, heads, SIZE, dtype=act) for _ in range(4))
    kk = torch.nn.functional.normalize(kk.float(), dim=-1).to(act)
    decay = 0.55 + 0.45 * draw(tokens, heads, SIZE).sigmoid()
    return r, decay, k, v, kk, draw(tokens, heads, SIZE).sigmoid().to(act)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("act", ACTS)
def test_recurrence_matches_float64(device, draw, distance, batch, act, state):
    lengths, slots = [5, 1, 9, 2], [3, 1, 5, 4]
    bank = draw(6, HEADS, SIZE, SIZE, dtype=state)
    kept, parts = bank.clone(), vectors(draw, 17, act)
    y = make_ops(device, act).wkv7(*parts, bank, batch(lengths, slots))
    wanted = Float64Ops(device).wkv7(*parts, kept, batch(lengths, slots))
    # A 16-bit state may round the other way where float32 and float64 fall on two sides.
    assert distance(y, wanted) < (2e-6 if state == torch.float32 else 2e-4)
    assert distance(bank, kept) < (2e-6 if state == torch.float32 else 1e-3)
    assert torch.equal(bank[[0, 2]], kept[[0, 2]])


@pytest.mark.parametrize("state", STATES)
def test_recurrence_rows_have_the_same_bits_for_every_row_count(device, draw, batch, state):
    ops, parts = make_ops(device, torch.bfloat16), vectors(draw, ROWS, torch.bfloat16)
    before = draw(ROWS + 1, HEADS, SIZE, SIZE, dtype=state)
    whole = before.clone()
    slots = list(range(1, ROWS + 1))
    y = ops.wkv7(*parts, whole, batch([1] * ROWS, slots))
    for rows in ODD:
        bank = before.clone()
        got = ops.wkv7(*(p[:rows] for p in parts), bank, batch([1] * rows, slots[:rows]))
        assert torch.equal(got, y[:rows])
        assert torch.equal(bank[1 : rows + 1], whole[1 : rows + 1])
        assert torch.equal(bank[rows + 1 :], before[rows + 1 :])
    order = torch.randperm(ROWS, device=device)
    bank = before.clone()
    shuffled = batch([1] * ROWS, (order + 1).tolist())
    got = ops.wkv7(*(p[order].contiguous() for p in parts), bank, shuffled)
    assert torch.equal(got, y[order])
    assert torch.equal(bank[1:], whole[1:])


@pytest.mark.parametrize("state", STATES)
def test_512_launches_give_the_bits_of_one(device, draw, batch, state):
    ops, tokens = make_ops(device, torch.bfloat16), 512
    parts = vectors(draw, 2 * tokens, torch.bfloat16)
    whole = draw(3, HEADS, SIZE, SIZE, dtype=state)
    split = whole.clone()
    y = ops.wkv7(*parts, whole, batch([tokens, tokens], [2, 1]))
    for t in range(tokens):
        piece = tuple(part[[t, tokens + t]] for part in parts)
        got = ops.wkv7(*piece, split, batch([1, 1], [2, 1]))
        assert torch.equal(got, y[[t, tokens + t]])
    assert torch.equal(whole, split)


def test_a_nan_neighbour_and_padding_rows_change_nothing(device, draw, batch):
    ops, parts = make_ops(device, torch.bfloat16), vectors(draw, 6, torch.bfloat16)
    bank = torch.full((8, HEADS, SIZE, SIZE), torch.nan, device=device)
    bank[5] = draw(HEADS, SIZE, SIZE)
    alone = bank.clone()
    wanted = ops.wkv7(*(p[2:4] for p in parts), alone, batch([2], [5]))
    for part in parts:
        part[[0, 1, 5]] = torch.nan
    got = ops.wkv7(*parts, bank, batch([1, 1, 2, 1, 1], [0, 3, 5, 0, 0]))
    assert torch.equal(got[2:4], wanted)
    assert torch.equal(bank[5], alone[5])
    assert bank[[1, 2, 3, 4, 6, 7]].isnan().all()


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("heads", [1, 5, 32])
def test_elementwise_kernels(device, draw, distance, act, heads):
    ops, reference, width = make_ops(device, act), Float64Ops(device), heads * SIZE
    parts = [draw(ROWS, width, dtype=act) for _ in range(6)]
    bias = [draw(width) for _ in range(5)]
    y, r_k = draw(ROWS, heads, SIZE), draw(heads, SIZE)
    r, k, v = (draw(ROWS, heads, SIZE, dtype=act) for _ in range(3))
    g = draw(ROWS, width, dtype=act)
    inputs = ops.wkv7_inputs(*parts, *bias, heads)
    output = ops.wkv7_output(y, r, k, v, g, *bias[:2], r_k, 64e-5)
    for index, (got, wanted) in enumerate(
        zip(inputs, reference.wkv7_inputs(*parts, *bias, heads), strict=True)
    ):
        assert distance(got, wanted) < (2e-6 if index == 0 else ROUNDING[act])
    wanted = reference.wkv7_output(y, r, k, v, g, *bias[:2], r_k, 64e-5)
    assert distance(output, wanted) < ROUNDING[act]
    for rows in ODD:
        some = ops.wkv7_inputs(*(p[:rows] for p in parts), *bias, heads)
        assert all(torch.equal(a, b[:rows]) for a, b in zip(some, inputs, strict=True))
        cut = (t[:rows] for t in (y, r, k, v, g))
        assert torch.equal(ops.wkv7_output(*cut, *bias[:2], r_k, 64e-5), output[:rows])
    plain = (*parts[:4], None, None, *bias[:2], None, *bias[3:], heads)
    assert torch.equal(ops.wkv7_inputs(*plain)[2].flatten(1), parts[2])
    for got, wanted in zip(ops.wkv7_inputs(*plain), reference.wkv7_inputs(*plain), strict=True):
        assert distance(got, wanted) < ROUNDING[act]
