"""Whole steps of the device way, interpreted and without graphs, against steps that run at once."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from statevisor.guests import host_rows
from statevisor.guests.batch import parts
from statevisor.guests.device_steps import DeviceSteps
from statevisor.guests.families.rwkv7 import Rwkv7Config, Rwkv7Model, random_weights
from statevisor.guests.mixed_rows import Size, write
from statevisor.guests.ops_cpu import CpuOps
from statevisor.guests.ops_triton import TritonOps
from statevisor.guests.runner import Runner
from statevisor.guests.tokenizer_bytes import ByteTokenizer
from statevisor.hypervisor.plan import DRAWN, Row, RowResult, StepPlan
from statevisor.hypervisor.sampling import Draw, SamplerSettings

CONFIG = Rwkv7Config(
    layers=1, width=64, heads=1, ffn=64, rank_w=8, rank_a=8, rank_v=8, rank_g=8, vocab=272
)
TENSORS = random_weights(CONFIG, 1)
SLOTS = 5
SETTINGS = (
    SamplerSettings(),
    SamplerSettings(temperature=0.8, top_p=0.9),
    SamplerSettings(temperature=1.0, logprobs=2),
)


def make_guest(steps: Any = None, ops: Any = None) -> Runner:
    ops = ops or CpuOps(1)
    model = Rwkv7Model.build(CONFIG, TENSORS, ops, "F32")
    if isinstance(ops, CpuOps):
        ops.admit(model.matrices())
    tokenizer = ByteTokenizer()
    guest = Runner(
        name="t", model=model, tokenizer=tokenizer, slots=SLOTS, step_tokens=64, steps=steps
    )
    guest.bank.bytes.zero_()
    return guest


def on_device(model: Any, bank: Any) -> DeviceSteps:
    return DeviceSteps(model, bank, buckets=(2, 4, 8))


class World:
    """Random plans; every row that drew may be followed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.drew: set[int] = set()

    def plan(self) -> StepPlan:
        chance = self.chance
        slots = chance.sample(range(1, SLOTS + 1), chance.randint(1, SLOTS))
        rows = []
        for slot in slots:
            draw = Draw(
                seed=slot,
                position=chance.randrange(1000),
                settings=chance.choice(SETTINGS),
                bias=((chance.randrange(272), 2.5),) if chance.random() < 0.3 else (),
            )
            tokens = tuple(chance.randrange(272) for _ in range(chance.choice((1, 1, 1, 3))))
            if slot in self.drew and chance.random() < 0.8:
                tokens = (DRAWN,)
            drawing = chance.random() < 0.8
            stops = frozenset(chance.sample(range(272), 8))
            draw = draw if drawing else None
            last = (
                draw.position - chance.choice((-1, 0, 1))
                if draw and chance.random() < 0.2
                else None
            )
            rows.append(Row(slot=slot, tokens=tokens, draw=draw, stops=stops, last=last))
        self.drew = {row.slot for row in rows if row.draw is not None}
        return StepPlan(rows=tuple(rows))


def pipelined(guest: Runner, plans: list[StepPlan]) -> list[tuple[RowResult, ...]]:
    tickets, results = [guest.submit(plans[0])], []
    for plan in plans[1:]:
        tickets.append(guest.submit(plan))
        results += guest.collect(tickets.pop(0))
    return [*results, *guest.collect(tickets.pop())]


def test_steps_on_the_device_are_the_steps_that_run_at_once() -> None:
    world = World(4)
    plans = [world.plan() for _ in range(5)]
    plain, device = make_guest(), make_guest(on_device)
    assert (plain.steps_ahead, device.steps_ahead) == (1, 2)
    assert pipelined(device, plans) == [plain.step(plan) for plan in plans]
    assert torch.equal(device.bank.bytes[1:], plain.bank.bytes[1:])
    assert any(row.follows for plan in plans for row in plan.rows)


SIZES = (Size(0, 4, 2), Size(0, 16, 6), Size(2, 4, 2), Size(4, 9, 4))


def in_sizes(model: Any, bank: Any) -> DeviceSteps:
    return DeviceSteps(model, bank, buckets=(2, 4, 8), sizes=SIZES)


def longer_rows() -> list[StepPlan]:
    """Random plans, of which some have longer rows alone."""
    world = World(11)
    alone = [Row(slot=slot, tokens=tuple(range(slot, slot + 3)), draw=GREEDY) for slot in (4, 2)]
    return [*(world.plan() for _ in range(5)), StepPlan(rows=tuple(alone))]


def test_steps_with_longer_rows_in_their_sizes_are_the_steps_that_run_at_once() -> None:
    """Rows of one token go before the others, and all that is filled up changes nothing."""
    plans = longer_rows()
    plain = make_guest(ops=TritonOps(torch.device("cpu"), torch.float16))
    device = make_guest(in_sizes, TritonOps(torch.device("cpu"), torch.float16))
    device.bank.bytes[0].fill_(0xFF)  # NaN in every float dtype
    steps: Any = device._steps
    used = []
    for plan in plans:
        assert pipelined(device, [plan]) == [plain.step(plan)]
        used.append(steps._standing.size)
    assert torch.equal(device.bank.bytes[1:], plain.bank.bytes[1:])
    mixed = [size for size in used if isinstance(size, Size)]
    assert {bool(size.singles) for size in mixed} == {False, True}


def test_padding_that_a_row_took_in_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the padding tokens belong to the last row."""
    (plan,) = longer_rows()[-1:]
    states = []
    for wrong in (False, True):
        if wrong:
            monkeypatch.setattr(host_rows, "write", padded_wrong)
        guest = make_guest(in_sizes, TritonOps(torch.device("cpu"), torch.float16))
        guest.step(plan)
        states.append(guest.bank.bytes[1:].clone())
    assert not torch.equal(*states)


def padded_wrong(host: torch.Tensor, size: Size, longer: Any) -> None:
    write(host, size, longer)
    _, owners, _, starts, lasts, _ = parts(host, size.all_tokens, size.rows)
    last = size.singles + len(longer) - 1
    owners[owners > last] = last
    starts[last + 1 :] = size.all_tokens
    lasts[last] = size.all_tokens - 1


def stopping(guest: Runner, stops: frozenset[int]) -> tuple[RowResult, bytes]:
    """The result of a row that follows, and its state."""
    greedy = Draw(seed=1, position=1, settings=SamplerSettings())
    first = Row(slot=2, tokens=(7,), draw=greedy, stops=stops)
    follows = replace(first, tokens=(DRAWN,))
    _, (result,) = pipelined(guest, [StepPlan(rows=(first,)), StepPlan(rows=(follows,))])
    out = bytearray(guest.layout.row_bytes)
    guest.save(2, memoryview(out))
    return result, bytes(out)


@pytest.mark.parametrize("steps", [None, on_device], ids=["at once", "device"])
def test_nothing_is_done_behind_a_stop(steps: Any) -> None:
    guest = make_guest(steps)
    (first,) = guest.step(StepPlan(rows=(Row(slot=1, tokens=(7,), draw=GREEDY),)))
    alone = bytearray(guest.layout.row_bytes)
    guest.save(1, memoryview(alone))
    result, state = stopping(guest, frozenset({first.token}))
    assert result == RowResult(ran=False)
    assert state == bytes(alone)
    # the control: without the stop the state goes on
    result, state = stopping(make_guest(steps), frozenset())
    assert result.ran
    assert state != bytes(alone)


GREEDY = Draw(seed=1, position=1, settings=SamplerSettings())


@pytest.mark.parametrize("steps", [None, on_device], ids=["at once", "device"])
def test_nothing_is_done_behind_a_row_that_is_not_finite(steps: Any) -> None:
    guest = make_guest(steps)
    guest.bank.views["shift_att"][3, 0, 5] = torch.nan
    plans = [
        StepPlan(rows=(Row(slot=3, tokens=(7,), draw=GREEDY), Row(slot=1, tokens=(8,)))),
        StepPlan(rows=(Row(slot=1, tokens=(9,)), Row(slot=3, tokens=(DRAWN,), draw=GREEDY))),
    ]
    first, second = pipelined(guest, plans)
    assert first == (RowResult(finite=False), RowResult())
    assert second == (RowResult(), RowResult(ran=False))


def test_the_same_rows_again_are_drawn_one_position_further() -> None:
    draw = Draw(seed=3, position=4, settings=SamplerSettings(temperature=1.0))
    known = tuple(Row(slot=slot, tokens=(slot,), draw=draw) for slot in (1, 2, 4))
    following = tuple(replace(row, tokens=(DRAWN,)) for row in known)
    plans = [StepPlan(rows=known), *[StepPlan(rows=following, offset=at) for at in range(1, 6)]]
    wanted = pipelined(make_guest(), [single for plan in plans for single in plan.resolved()])
    assert pipelined(make_guest(), plans) == wanted
    assert pipelined(make_guest(on_device), plans) == wanted
    # several times at once
    once = [plans[0], *[StepPlan(rows=following, offset=at, times=n) for at, n in ((1, 3), (4, 2))]]
    assert pipelined(make_guest(), once) == wanted
    assert pipelined(make_guest(on_device), once) == wanted
    # the control: positions that stand still draw something else
    still = [plans[0], *[StepPlan(rows=following, offset=1)] * 5]
    assert pipelined(make_guest(on_device), still) != wanted


@pytest.mark.parametrize("steps", [None, on_device], ids=["at once", "device"])
def test_nothing_is_done_behind_the_last_position(steps: Any) -> None:
    """A step given several times ends for each row where that row ends."""
    rows = tuple(
        Row(slot=slot, tokens=(9,), draw=replace(GREEDY, position=7), last=last)
        for slot, last in ((1, 7), (2, 9), (3, None))
    )
    following = tuple(replace(row, tokens=(DRAWN,)) for row in rows)
    guest = make_guest(steps)
    results = pipelined(guest, [StepPlan(rows=rows), StepPlan(rows=following, offset=1, times=4)])
    assert [[result.ran for result in row] for row in zip(*results, strict=True)] == [
        [True, False, False, False, False],
        [True, True, True, False, False],
        [True] * 5,
    ]
    alone = make_guest()
    for slot, count in ((1, 1), (2, 3), (3, 5)):
        token = 9
        for at in range(count):
            draw = replace(GREEDY, position=7 + at)
            (result,) = alone.step(StepPlan(rows=(Row(slot=slot, tokens=(token,), draw=draw),)))
            assert result == results[at][slot - 1]
            token = result.token
    assert torch.equal(guest.bank.bytes[1:4], alone.bank.bytes[1:4])
