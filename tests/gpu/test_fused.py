"""The pass in few kernels on the device: float64, row counts, tiles, slots and neighbours."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from statevisor.guests.families import rwkv7_fused
from statevisor.guests.graphs import record
from statevisor.guests.linear_triton import Tile
from statevisor.guests.mixers.time_triton import token_kernel
from statevisor.guests.stacks_triton import Region, Stack, Stacks, added

BF16 = torch.bfloat16
TILES = [
    Tile.parse(text)
    for text in (
        "64x16x256w4s4",
        "64x32x128w4s5",
        "64x64x128w4s6",
        "64x128x128w4s4",
        "128x64x64w8s6",
        "128x128x64w8s6",
        "128x256x64w8s4",
    )
]
#: (O, K) of summed stacks of the 1.5B and 191M geometries and of a small one, with row counts: of
#: the first in every bucket, of the others in the first and the middle one, since each is compiled.
SUMMED = {
    (2048, 8192): (*range(1, 301, 23), 16, 64, 128, 256),
    (768, 3072): (1, 2, 16, 40, 64, 300),
    (256, 768): (1, 7, 50, 64, 300),
}
#: Those of `TILES` that sums are tried with.
SUMMED_TILES = [TILES[index] for index in (0, 2, 5, 6)]


def tiles(stack: Stack) -> list[Tile]:
    """Tiles that fit, with segments apart and in turn."""
    if stack.segments == 1:
        return [tile for tile in TILES if stack.holds(tile)]
    fitting = [tile for tile in SUMMED_TILES if stack.holds(tile)]
    apart = [Tile.parse(f"{tile}+") for tile in fitting]
    # Two sums of a large tile need more registers than there are.
    return [*apart, *(tile for tile in fitting if tile.block_n < 256 and tile.block_o < 256)]


@pytest.mark.parametrize("shape", SUMMED, ids=str)
def test_rows_and_tiles_change_no_bit_of_a_sum(draw, distance, shape):
    x, weight = draw(301, shape[1], dtype=BF16), (draw(*shape) / shape[1] ** 0.5).to(BF16)
    launch, stack = Stacks(dependent=True), Stack(weight, summed=True, ahead=128)
    assert stack.segments > 1
    wanted = added(launch(x, stack))
    assert distance(wanted, x.double() @ weight.double().T) < 1e-5
    for rows in SUMMED[shape]:
        assert torch.equal(added(launch(x[:rows], stack)), wanted[:rows]), rows
        begin = 301 - rows
        assert torch.equal(added(launch(x[begin:].contiguous(), stack)), wanted[begin:]), rows
    for tile in tiles(stack) if shape == next(iter(SUMMED)) else ():
        assert torch.equal(added(launch(x, stack, tile=tile)), wanted), str(tile)
    assert torch.equal(added(Stacks()(x, stack)), wanted)


def test_sums_in_another_order_are_told_apart(draw):
    x, weight = draw(64, 8192, dtype=BF16), draw(2048, 8192, dtype=BF16)
    planes = Stacks()(x, Stack(weight, summed=True), tile=Tile.parse("64x64x128w4s4+"))
    assert len(planes) == 4
    assert not torch.equal(added(planes), added(planes.flip(0)))


def test_regions_with_poisoned_neighbours(draw, distance):
    weight = (draw(640, 256) / 16).to(BF16)
    regions = [
        Region(begin=0, width=256, inner=256, plane=1),
        Region(begin=256, width=64, inner=256, activation="tanh"),
        Region(begin=320, width=320, inner=128, plane=2, column=64, activation="sigmoid"),
    ]
    x, launch = draw(3, 150, 256, dtype=BF16), Stacks(dependent=True)
    stack = Stack(weight, regions)
    clean = launch(x.flatten(0, 1), stack)
    planes, w = x.double(), weight.double()
    wanted = torch.cat(
        [
            planes[1] @ w[:256].T,
            (planes[0] @ w[256:320].T).tanh(),
            (planes[2, :, 64:192] @ w[320:, :128].T).sigmoid(),
        ],
        1,
    )
    assert distance(clean, wanted) < 8e-3
    x[:, [0, 17, 149]] = torch.nan
    kept = [row for row in range(150) if row not in (0, 17, 149)]
    for tile in tiles(stack):
        got = launch(x.flatten(0, 1), stack, tile=tile)
        assert torch.equal(got[kept], clean[kept]), str(tile)
        assert got[[0, 17, 149], :256].isnan().all()


def recurrence(guest, draw, rows: int):
    """(layer, downs, ups, first) of random numbers for so many tokens."""
    fused = guest.model.fused
    layer, width = fused._layers[1], fused.weights.config.width
    pitch = layer.downs.shape[0]
    downs, first = draw(rows, pitch, dtype=BF16), draw(rows, pitch, dtype=BF16)
    return layer, downs, draw(rows, 4 * width, dtype=BF16), first


@pytest.mark.parametrize("state", ["F32", "F16"])
def test_single_tokens_and_prompts_give_the_same_bits(make_guest, draw, state):
    rows = 301
    guest = make_guest(BF16, state, rows)
    fused, wkv = guest.model.fused, guest.bank.layers("wkv")[1]
    layer, *operands = recurrence(guest, draw, rows)
    wkv.copy_(draw(*wkv.shape))
    before = guest.bank.bytes.clone()
    single = guest.pack([(slot, [0]) for slot in range(1, rows + 1)])
    out = fused._recur(layer, *operands, wkv, single)
    after = guest.bank.bytes.clone()
    for count in (1, 2, 31, 64, 300):
        guest.bank.bytes.copy_(before)
        some = guest.pack([(slot, [0]) for slot in range(1, count + 1)])
        got = fused._recur(layer, *(operand[:count] for operand in operands), wkv, some)
        assert torch.equal(got, out[:count])
        assert torch.equal(guest.bank.bytes[1 : count + 1], after[1 : count + 1])
        assert torch.equal(guest.bank.bytes[count + 1 :], before[count + 1 :])
    # One row has two tokens, so that the other kernels run; the rest are the same single tokens.
    guest.bank.bytes.copy_(before)
    last = rows - 1
    longer = guest.pack([(slot, [0]) for slot in range(2, last)] + [(last, [0, 0])])
    got = fused._recur(layer, *(operand[1:] for operand in operands), wkv, longer)
    assert torch.equal(got[: last - 1], out[1:last])
    assert torch.equal(guest.bank.bytes[2:last], after[2:last])
    assert not torch.equal(guest.bank.bytes[last], after[last])


@pytest.mark.parametrize(
    ("state", "programs", "walked"),
    [("F16", 1, 3), ("F16", 3, 2), ("F32", 1, 3), ("F32", 3, 2)],
)
def test_how_programs_walk_over_rows_changes_no_bit(
    make_guest, draw, monkeypatch, state, programs, walked
):
    guest = make_guest(BF16, state, 600)
    fused, wkv = guest.model.fused, guest.bank.layers("wkv")[1]
    layer, *operands = recurrence(guest, draw, 600)
    wkv.copy_(draw(*wkv.shape))
    before = guest.bank.bytes.clone()
    batch = guest.pack([(slot, [0]) for slot in range(1, 601)])
    monkeypatch.setattr("statevisor.guests.families.rwkv7_fused.TIME_PROGRAMS", 10**6)
    assert fused._walk(600, wkv.dtype) == (1, 600)
    wanted = fused._recur(layer, *operands, wkv, batch)
    after = guest.bank.bytes.clone()
    guest.bank.bytes.copy_(before)
    monkeypatch.setattr("statevisor.guests.families.rwkv7_fused.TIME_PROGRAMS", 1)
    monkeypatch.setitem(rwkv7_fused.WALKS, wkv.dtype, (walked, programs))
    assert fused._walk(600, wkv.dtype)[0] == walked
    assert torch.equal(fused._recur(layer, *operands, wkv, batch), wanted)
    assert torch.equal(guest.bank.bytes[1:], after[1:])


@pytest.mark.parametrize("state", ["F32", "F16"])
@pytest.mark.parametrize("warps", [2, 4])
def test_how_many_warps_share_a_state_changes_no_bit(make_guest, draw, monkeypatch, state, warps):
    guest = make_guest(BF16, state, 20)
    fused, wkv = guest.model.fused, guest.bank.layers("wkv")[1]
    layer, *operands = recurrence(guest, draw, 20)
    wkv.copy_(draw(*wkv.shape))
    before = guest.bank.bytes.clone()
    batch = guest.pack([(slot, [0]) for slot in range(1, 21)])
    monkeypatch.setitem(rwkv7_fused.FEW_TIME_ROWS, wkv.dtype, 0)
    wanted = fused._recur(layer, *operands, wkv, batch)
    after = guest.bank.bytes.clone()
    guest.bank.bytes.copy_(before)
    monkeypatch.setitem(rwkv7_fused.FEW_TIME_ROWS, wkv.dtype, 20)
    monkeypatch.setattr("statevisor.guests.families.rwkv7_fused.FEW_TIME_WARPS", warps)
    assert torch.equal(fused._recur(layer, *operands, wkv, batch), wanted)
    assert torch.equal(guest.bank.bytes, after)


@pytest.mark.parametrize("rows", [1, 40, 200])
def test_steps_that_follow_at_once_give_the_bits_of_steps_waited_for(make_guest, rows):
    """What kernels read early is what the step before left, also where nothing waits between."""
    guest = make_guest(BF16, "F16", rows)
    model, bank = guest.model, guest.bank
    batch = guest.pack([(slot, [0]) for slot in range(1, rows + 1)])
    tokens = torch.arange(rows, device=batch.tokens.device)

    def step() -> torch.Tensor:
        return torch.argmax(model.logits(model.forward(bank, batch)), 1, out=batch.tokens)

    graph, _ = record(step)

    def steps(one, wait: bool) -> tuple[torch.Tensor, torch.Tensor]:
        bank.bytes.zero_()
        batch.tokens.copy_(tokens)
        for _ in range(60):
            one()
            if wait:
                torch.cuda.synchronize()
        return batch.tokens.clone(), bank.bytes[1:].clone()

    wanted = steps(step, True)
    for one in (step, graph.replay):
        assert all(map(torch.equal, steps(one, False), wanted))


@pytest.mark.parametrize("shape", SUMMED, ids=str)
def test_channels_that_are_not_read_change_no_bit(draw, distance, shape):
    inner = shape[1]
    x, weight = draw(1, inner, dtype=BF16).relu(), (draw(*shape) / inner**0.5).to(BF16)
    x[:, ::5] = 0
    launch, stack = Stacks(dependent=True), Stack(weight, summed=True, sparse=True)
    got = added(launch(x, stack))
    assert torch.equal(got, added(launch(x, stack, tile=Tile.parse("64x16x64w4s4+"))))
    assert torch.equal(got[0], added(launch(x.expand(40, inner).contiguous(), stack))[17])
    assert distance(got, x.double() @ weight.double().T) < 1e-5
    stack.channels[x[0] == 0] = torch.nan
    assert torch.equal(added(launch(x, stack)), got)
    # the control: one that matters is read
    stack.channels[int(x[0].nonzero()[0])] = torch.nan
    assert added(launch(x, stack)).isnan().all()


def test_nan_neighbours_and_padding_rows_change_nothing(make_guest, draw):
    guest = make_guest(BF16, "F16", 8)
    guest.feed([(5, [1, 2, 3])])
    kept = guest.bank.bytes[5].clone()
    wanted = guest.feed([(5, [9])])
    after = guest.bank.bytes[5].clone()
    guest.bank.bytes.fill_(0xFF)
    guest.bank.bytes[5].copy_(kept)
    got = guest.feed([(0, [0]), (3, [7]), (5, [9]), (0, [0])])
    assert torch.equal(got[2], wanted[0])
    assert torch.equal(guest.bank.bytes[5], after)
    assert got[1].isnan().all()


def test_the_recurrence_reaches_slots_past_2_to_31_elements(make_guest, device, draw):
    guest = make_guest(BF16, "F16", 4)
    fused, dense = guest.model.fused, guest.bank.layers("wkv")[1]
    heads, size = dense.shape[1:3]
    stride, far = 2**30, 3
    memory = torch.zeros(far * stride + heads * size * size, dtype=torch.float16, device=device)
    sparse = torch.as_strided(memory, (far + 1, *dense.shape[1:]), (stride, size * size, size, 1))
    sparse[far] = dense[far] = draw(heads, size, size, dtype=torch.float16)
    layer, *operands = recurrence(guest, draw, 2)
    for tokens in ([0], [0, 0]):
        batch = guest.pack([(far, tokens)])
        cut = [operand[: len(tokens)] for operand in operands]
        assert torch.equal(
            fused._recur(layer, *cut, sparse, batch), fused._recur(layer, *cut, dense, batch)
        )
        assert torch.equal(sparse[far], dense[far])
    assert not sparse[1:far].any()


def test_a_launch_found_again_is_the_one_that_was_compiled(make_guest):
    guest = make_guest(BF16, "F16", 40)
    plan = [(slot, [slot]) for slot in range(1, 41)]
    first = guest.feed(plan)
    launcher = guest.model.ops.launcher
    known = len(launcher._found)
    assert any(key[0] is token_kernel.fn for key in launcher._found)
    guest.bank.bytes.zero_()
    assert torch.equal(guest.feed(plan), first)
    assert len(launcher._found) == known
    launcher._found.clear()
    guest.bank.bytes.zero_()
    assert torch.equal(guest.feed(plan), first)
