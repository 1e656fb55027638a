"""The pass in few kernels, interpreted: equations, splits, batches, slots, neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch

from statevisor.guests.bank import Bank
from statevisor.guests.families import rwkv7, rwkv7_fused
from statevisor.guests.linear_triton import Tile
from statevisor.guests.mixers import shift_triton, time_triton, wkv7
from statevisor.guests.ops_triton import TritonOps
from statevisor.guests.prompt_graphs import PromptGraphs, PromptRows
from statevisor.guests.stacks_triton import (
    Region,
    Stack,
    Stacks,
    added,
    default_cut,
)
from statevisor.hypervisor.errors import CapabilityMissing

CONFIG = rwkv7.Rwkv7Config(
    layers=2, width=64, heads=1, ffn=128, rank_w=16, rank_a=16, rank_v=8, rank_g=72, vocab=80
)
SLOTS = 5
ACT = torch.float16


class Guest:
    def __init__(self, state: str) -> None:
        self.tensors = rwkv7.random_weights(CONFIG, seed=5)
        ops = TritonOps(torch.device("cpu"), ACT)
        self.model = rwkv7.Rwkv7Model.build(CONFIG, self.tensors, ops, state)
        self.bank = Bank(self.model.layout, SLOTS)

    def feed(self, make_batch, rows: Sequence[tuple[int, Sequence[int]]]) -> torch.Tensor:
        """rows: (slot, tokens); returns logits [R, V]."""
        batch = make_batch([len(tokens) for _, tokens in rows], [slot for slot, _ in rows])
        batch.tokens.copy_(torch.tensor([token for _, tokens in rows for token in tokens]))
        return self.model.logits(self.model.forward(self.bank, batch))


@pytest.fixture
def guest() -> Guest:
    return Guest("F16")


def test_logits_and_state_match_the_equations(guest, make_batch, distance):
    assert guest.model.fused is not None
    tokens = (3, 70)
    doubles = {name: tensor.double() for name, tensor in guest.tensors.items()}
    state = wkv7.empty_state(CONFIG.layers, CONFIG.width, torch.float64)
    for token in tokens:
        wanted = wkv7.step(doubles, state, token)
    got = guest.feed(make_batch, [(2, tokens)])[0]
    assert got.dtype == torch.float32
    assert distance(got, wanted) < 1e-2
    assert distance(guest.bank.views["wkv"][2], state["wkv"]) < 1e-2


def test_batch_split_slot_and_neighbours_change_no_bit(guest, make_batch):
    tokens = (3, 70, 12, 41)
    wanted = guest.feed(make_batch, [(1, tokens)])
    guest.feed(make_batch, [(3, tokens[:1])])
    guest.bank.bytes[2].fill_(0xFF)  # NaN in every float dtype
    guest.feed(make_batch, [(2, (9,)), (3, tokens[1:3]), (0, (0,))])
    got = guest.feed(make_batch, [(0, (0,)), (4, (2,)), (3, tokens[3:])])[2:]
    assert torch.equal(got, wanted)
    assert torch.equal(guest.bank.bytes[3], guest.bank.bytes[1])
    assert not guest.bank.bytes[5].any()


def test_programs_that_walk_over_rows_give_the_bits_of_one_a_row(guest, make_batch, monkeypatch):
    rows = [(slot, (slot + 3,)) for slot in (4, 1, 5, 2, 3)]
    guest.feed(make_batch, [(slot, (9,)) for slot, _ in rows])
    before = guest.bank.bytes.clone()
    wanted, states = guest.feed(make_batch, rows), guest.bank.bytes.clone()
    guest.bank.bytes.copy_(before)
    monkeypatch.setattr(rwkv7_fused, "TIME_PROGRAMS", 4)
    monkeypatch.setitem(rwkv7_fused.WALKS, ACT, (3, 2))
    assert guest.model.fused._walk(5, ACT) == (3, 2)
    assert torch.equal(guest.feed(make_batch, rows), wanted)
    assert torch.equal(guest.bank.bytes, states)


def test_no_program_walks_over_more_rows_than_it_can(guest):
    fused, most = guest.model.fused, time_triton.MOST_TURNS.value
    for state, (walked, programs) in rwkv7_fused.WALKS.items():
        for rows in (9, 8 * most, 8 * most + 1, 5000):
            _, each = fused._walk(rows, state)
            assert rows <= each * most
        assert fused._walk(programs * most, state) == (walked, programs)


def test_programs_of_one_warp_and_of_several_give_the_same_bits(guest, make_batch, monkeypatch):
    rows = [(slot, (slot + 3,)) for slot in (4, 1, 5)]
    guest.feed(make_batch, [(slot, (9,)) for slot, _ in rows])
    before = guest.bank.bytes.clone()
    wanted, states = guest.feed(make_batch, rows), guest.bank.bytes.clone()
    guest.bank.bytes.copy_(before)
    monkeypatch.setitem(rwkv7_fused.FEW_TIME_ROWS, ACT, 0)
    assert torch.equal(guest.feed(make_batch, rows), wanted)
    assert torch.equal(guest.bank.bytes, states)


@pytest.mark.parametrize("lengths", [[1, 1, 1], [1, 3]], ids=["single", "longer"])
def test_the_first_launch_of_a_pass_waits_for_all_before_it(guest, make_batch, lengths):
    """What the others read early was written before the pass."""
    fused, ops, seen = guest.model.fused, guest.model.ops, []

    def record(kernel, grid, arguments, constants, options):
        seen.append((kernel, options["launch_pdl"]))

    ops.launch = {**ops.launch, "DEPENDENT": True}
    ops.stacks._dependent = True
    ops.launcher = ops.stacks._launch = record
    fused.forward(guest.bank, make_batch(lengths, list(range(1, len(lengths) + 1))))
    (first, dependent), *others = seen
    assert first is shift_triton.residual_mix_kernel
    assert not dependent
    assert len(others) >= 8 * CONFIG.layers
    assert all(dependent for _, dependent in others)


def test_a_batch_filled_up_with_padding_gives_the_bits_of_its_own(guest, make_batch):
    lengths, slots = [2, 1], [4, 1]
    batch = make_batch(lengths, slots)
    batch.tokens.copy_(torch.arange(5, 8))
    eager = partial(guest.model.forward, guest.bank)
    wanted, states = eager(batch), guest.bank.bytes.clone()
    guest.bank.bytes.zero_()
    guest.bank.bytes[0].fill_(0xFF)  # NaN in every float dtype
    places = {"tokens": 5, "slots": SLOTS, "device": batch.tokens.device}
    padded = PromptGraphs(eager, sizes=[(5, 4)], **places)
    assert padded.size(batch) == (5, 4)
    assert torch.equal(padded(batch), wanted)
    assert torch.equal(guest.bank.bytes[1:], states[1:])
    assert (guest.bank.bytes[0] == 0xFF).all()
    # the control: a padding row that has the padding tokens is run, and writes its slot
    rows = PromptRows(5, 4, batch.tokens.device)
    rows.fill(batch, (5, 4))
    rows.batch((5, 4)).starts[-1] = 5
    eager(rows.batch((5, 4)))
    assert not (guest.bank.bytes[0] == 0xFF).all()


def test_a_poisoned_slot_is_seen_by_its_own_row_alone(guest, make_batch):
    guest.bank.views["wkv"][2].fill_(torch.nan)
    got = guest.feed(make_batch, [(1, (7,)), (2, (7,))])
    assert got[0].isfinite().all()
    assert not got[1].isfinite().all()


def test_the_plain_pass_over_single_operators_is_near(guest, make_batch, distance):
    """The twin reads the same weights, some of them as views of the stacks."""
    model, batch = guest.model, make_batch([1, 2], [1, 2])
    batch.tokens.copy_(torch.tensor([3, 70, 12]))
    twin = Bank(model.layout, SLOTS)
    plain = rwkv7.logits(
        model.ops, model.weights, rwkv7.forward(model.ops, model.weights, twin, batch)
    )
    fused = model.logits(model.forward(guest.bank, batch))
    assert distance(fused, plain) < 5e-3
    assert distance(guest.bank.views["wkv"], twin.views["wkv"]) < 5e-3
    layer = model.weights.layers[1]
    assert layer.value.data_ptr() - layer.receptance.data_ptr() == 2 * 2 * CONFIG.width**2


CUTS = [
    Tile.parse(text)
    for text in (
        "64x16x64w4s2",
        "64x32x128w4s2",
        "128x16x128w4s2",
        "64x32x64w4s2+",
        "128x32x128w4s2+",
    )
]


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_every_tile_adds_each_product_once(cut):
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(-3, 4, (37, 512), generator=generator).half()
    weight = torch.randint(-2, 3, (192, 512), generator=generator).half()
    stack = Stack(weight, summed=True)
    assert stack.segments == 4
    planes = Stacks()(x, stack, tile=cut)
    assert planes.shape == (4 if cut.spread else 1, 37, 192)
    assert torch.equal(added(planes).double(), x.double() @ weight.double().T)


@pytest.mark.parametrize("block_o", [64, 128])
def test_regions_read_their_own_plane_columns_and_width(draw, distance, block_o):
    weight = draw(256, 128, dtype=ACT) / 10
    regions = [
        Region(begin=0, width=64, inner=128, plane=1, activation="tanh"),
        Region(begin=64, width=128, inner=64, column=64),
        Region(begin=192, width=64, inner=64, plane=1, column=64, activation="relu2"),
    ]
    x = draw(2 * 19, 128, dtype=ACT)
    x[19 + 5] = torch.nan
    cut = Tile(block_o=block_o, block_n=16, warps=4, stages=2)
    got = Stacks()(x, Stack(weight, regions), tile=cut).double()
    one, two = x[:19].double(), x[19:].double()
    w = weight.double()
    wanted = torch.cat(
        [
            (two @ w[:64].T).tanh(),
            one[:, 64:] @ w[64:192, :64].T,
            (two[:, 64:] @ w[192:, :64].T).relu().square(),
        ],
        1,
    )
    kept = [row for row in range(19) if row != 5]
    assert distance(got[kept], wanted[kept]) < 1e-3
    assert got[5, :64].isnan().all()
    assert got[5, 64:192].isfinite().all()


def test_a_tile_that_would_read_past_a_segment_is_not_taken(draw):
    stack = Stack(draw(192, 512, dtype=ACT), summed=True)
    assert (stack.segments, stack.length) == (4, 128)
    wide = Tile(block_o=64, block_n=16, warps=4, stages=2, step=256)
    assert not stack.holds(wide)
    stacks = Stacks({(192, 512, 16): wide})
    assert stacks.tile(stack, 3) == default_cut(stack, 3)
    with pytest.raises(AssertionError, match="does not divide"):
        stacks(draw(3, 512, dtype=ACT), stack, tile=wide)


def sparse(draw, features: int = 192, inner: int = 512) -> tuple[torch.Tensor, torch.Tensor]:
    """A row of which most channels are zero, and a weight."""
    x = draw(1, inner, dtype=ACT).relu()
    x[:, ::3] = 0
    return x, draw(features, inner, dtype=ACT) / 10


@pytest.mark.parametrize(
    ("shape", "step"), [((192, 512), 128), ((100, 576), 64), ((64, 4096), 256)], ids=str
)
def test_channels_that_are_not_read_change_no_bit(draw, distance, shape, step):
    x, weight = sparse(draw, *shape)
    stack, launch = Stack(weight, summed=True, sparse=True), Stacks()
    assert stack.turn == step
    # of as many channels a turn, since the interpreter's sums know it
    got, plain = launch(x, stack), Tile.parse(f"64x16x{step}w4s2+")
    assert torch.equal(got, launch(x, stack, tile=plain))
    assert distance(added(got), x.double() @ weight.double().T) < 1e-3


def test_only_channels_that_matter_are_read(draw):
    x, weight = sparse(draw)
    stack, launch = Stack(weight, summed=True, sparse=True), Stacks()
    wanted = launch(x, stack)
    stack.channels[x[0] == 0] = torch.nan
    assert torch.equal(launch(x, stack), wanted)
    # the control: one that matters is read, in the segment that has it
    alone = int(x[0].nonzero()[0])
    stack.channels[alone] = torch.nan
    got = launch(x, stack)
    assert got[alone // stack.length].isnan().all()
    assert added(got).isnan().all()


def test_an_activation_that_is_no_number_is_seen(draw):
    x, weight = sparse(draw)
    stack = Stack(weight, summed=True, sparse=True)
    x[0, 0] = torch.nan
    assert added(Stacks()(x, stack)).isnan().all()


def test_a_weight_that_is_not_finite_is_read_whole(draw):
    """Zero times infinity is not zero, so such channels cannot be left out."""
    x, weight = sparse(draw)
    weight[5, 0] = torch.inf
    stack = Stack(weight, summed=True, sparse=True)
    assert stack.channels is None
    assert added(Stacks()(x, stack))[:, 5].isnan().all()


def test_the_check_at_start_compares_a_row_by_channels_with_rows_by_tiles(draw):
    _, weight = sparse(draw)
    stack = Stack(weight, summed=True, sparse=True)
    # of as many channels a turn, since the interpreter's sums know it
    stacks = Stacks({(192, 512, 16): Tile.parse("64x16x128w4s2+")})
    stacks.know(stack)
    stacks.check((1, 2))
    stack.channels += 1
    with pytest.raises(CapabilityMissing, match="other bits at 2 rows than at one"):
        stacks.check((1, 2))
