"""Whole steps on the device: graphs with their draws, one ahead, against plain steps that wait."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from statevisor.guests.device_steps import DeviceSteps
from statevisor.guests.families import rwkv7
from statevisor.guests.mixed_rows import mixed_sizes
from statevisor.guests.runner import Runner
from statevisor.guests.tokenizer_bytes import ByteTokenizer
from statevisor.hypervisor.plan import DRAWN, MOST_TIMES, Row, RowResult, StepPlan
from statevisor.hypervisor.sampling import Draw, SamplerSettings

CONFIG = rwkv7.Rwkv7Config(
    layers=2, width=256, heads=4, ffn=768, rank_w=32, rank_a=32, rank_v=16, rank_g=64, vocab=1000
)
TENSORS = rwkv7.random_weights(CONFIG, seed=5)
SLOTS = 70
SETTINGS = (
    SamplerSettings(),
    SamplerSettings(),
    SamplerSettings(temperature=1.0),
    SamplerSettings(temperature=0.8, top_p=0.9),
    SamplerSettings(temperature=1.1, top_k=30, min_p=0.01),
    SamplerSettings(temperature=1.0, logprobs=4),
)


def make_guest(device, steps=None) -> Runner:
    from statevisor.guests.ops_triton import TritonOps

    model = rwkv7.Rwkv7Model.build(CONFIG, TENSORS, TritonOps(device, torch.bfloat16), "F32")
    guest = Runner(
        name="t",
        model=model,
        tokenizer=ByteTokenizer(),
        slots=SLOTS,
        step_tokens=2048,
        steps=steps,
    )
    guest.bank.bytes.zero_()
    return guest


def captured(model, bank) -> DeviceSteps:
    steps = DeviceSteps(model, bank, sizes=mixed_sizes(512, SLOTS))
    steps.capture()
    return steps


def plans(seed: int, count: int) -> list[StepPlan]:
    """Random steps of 1 to all slots; mostly single tokens; a row that drew is mostly followed."""
    chance, drew, made = random.Random(seed), set(), []
    for _ in range(count):
        long = chance.random() < 0.15
        rows = []
        for slot in chance.sample(range(1, SLOTS + 1), chance.choice((1, 2, 5, 33, SLOTS))):
            tokens = [chance.randrange(1000) for _ in range(chance.randint(1, 9) if long else 1)]
            if slot in drew and chance.random() < 0.8:
                tokens = [DRAWN]
            biased = chance.random() < 0.1
            draw = Draw(
                seed=chance.randrange(2**53),
                position=chance.randrange(2**30),
                settings=chance.choice(SETTINGS),
                bias=((chance.randrange(500), 1.5), (chance.randrange(500, 1000), -2.0))
                if biased
                else (),
            )
            rows.append(
                Row(
                    slot=slot,
                    tokens=tuple(tokens),
                    draw=draw if chance.random() < 0.9 else None,
                    stops=frozenset(chance.sample(range(1000), 8)),
                    last=draw.position + 1 - chance.randrange(3) if chance.random() < 0.1 else None,
                )
            )
        drew = {row.slot for row in rows if row.draw is not None}
        made.append(StepPlan(rows=tuple(rows)))
    return made


def ahead(guest: Runner, steps: list[StepPlan]) -> list[tuple[RowResult, ...]]:
    waiting, results = [guest.submit(steps[0])], []
    for plan in steps[1:]:
        waiting.append(guest.submit(plan))
        results += guest.collect(waiting.pop(0))
    return [*results, *guest.collect(waiting.pop())]


def test_graphed_steps_ahead_are_plain_steps(device) -> None:
    steps = plans(1, 120)
    plain, fast = make_guest(device), make_guest(device, captured)
    wanted = [plain.step(plan) for plan in steps]
    assert ahead(fast, steps) == wanted
    assert torch.equal(fast.bank.bytes[1:], plain.bank.bytes[1:])
    assert any(not result.ran for results in wanted for result in results)


def test_a_plan_handed_over_again_goes_on(device) -> None:
    """The table of rows that stay the same is kept; only positions move."""
    plain, fast = make_guest(device), make_guest(device, captured)
    first = tuple(
        Row(
            slot=slot,
            tokens=(slot,),
            draw=Draw(seed=slot, position=5, settings=SETTINGS[slot % len(SETTINGS)]),
            stops=frozenset({slot}),
        )
        for slot in range(1, 41)
    )
    begin = StepPlan(rows=first)
    rows = tuple(replace(row, tokens=(DRAWN,)) for row in first)
    again = [StepPlan(rows=rows, offset=turn) for turn in range(1, 30)]
    wanted = [plain.step(plan) for plan in (begin, *[one for p in again for one in p.resolved()])]
    assert ahead(fast, [begin, *again]) == wanted
    # several times at once
    counts = [1, MOST_TIMES, 3, MOST_TIMES, 2, 7]
    assert sum(counts) == len(again)
    starts = [1 + sum(counts[:at]) for at in range(len(counts))]
    bursts = [StepPlan(rows=rows, offset=at, times=n) for at, n in zip(starts, counts, strict=True)]
    fast.bank.bytes.zero_()
    assert ahead(fast, [begin, *bursts]) == wanted
    assert torch.equal(fast.bank.bytes[1:], plain.bank.bytes[1:])


def stopped(guest: Runner, stops: frozenset[int]) -> tuple[RowResult, bytes]:
    greedy = Draw(seed=1, position=1, settings=SamplerSettings())
    first = Row(slot=2, tokens=(7,), draw=greedy, stops=stops)
    follows = Row(slot=2, tokens=(DRAWN,), draw=greedy)
    _, (result,) = ahead(guest, [StepPlan(rows=(first,)), StepPlan(rows=(follows,))])
    return result, guest.bank.bytes[2].cpu().numpy().tobytes()


def test_nothing_is_done_behind_a_stop(device) -> None:
    guest = make_guest(device, captured)
    greedy = Draw(seed=1, position=1, settings=SamplerSettings())
    (first,) = guest.step(StepPlan(rows=(Row(slot=1, tokens=(7,), draw=greedy),)))
    alone = guest.bank.bytes[1].cpu().numpy().tobytes()
    result, state = stopped(guest, frozenset({first.token}))
    assert result == RowResult(ran=False)
    assert state == alone
    # the control: without the stop the state goes on
    guest.bank.clear(2)
    result, state = stopped(guest, frozenset())
    assert result.ran
    assert state != alone


def test_a_step_is_begun_without_waiting(device) -> None:
    """A submit returns while the step before is still held back by a spin."""
    guest = make_guest(device, captured)
    draw = Draw(seed=1, position=1, settings=SamplerSettings(temperature=1.0, top_p=0.9))
    steps = [StepPlan(rows=tuple(Row(slot=s, tokens=(s,), draw=draw) for s in (1, 2, 3)))] * 4
    ahead(guest, steps)
    torch.cuda._sleep(200_000_000)
    ticket = guest.submit(steps[0])
    assert not ticket.done.query()
    guest.collect(ticket)
    assert ticket.done.query()
