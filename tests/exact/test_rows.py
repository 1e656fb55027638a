"""E2 and E3: tokens, logits and state of an actor depend on nothing but its own input."""

from __future__ import annotations

import random
import threading

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ACTORS = 6
LENGTH = 24

#: The fixtures hold nothing that an example changes for the next.
shared = settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def cut(draw: st.DrawFn, length: int) -> list[int]:
    sizes: list[int] = []
    while sum(sizes) < length:
        sizes.append(draw(st.integers(1, length - sum(sizes))))
    return sizes


@st.composite
def schedules(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """Steps of (actor, number of tokens); actors join, pause and leave as it comes."""
    left = dict.fromkeys(range(ACTORS), LENGTH)
    steps = []
    for _ in range(draw(st.integers(1, 12))):
        present = [actor for actor, count in left.items() if count]
        chosen = draw(st.permutations(present))[: draw(st.integers(1, ACTORS))]
        step = [(actor, draw(st.integers(1, min(left[actor], 7)))) for actor in chosen]
        for actor, count in step:
            left[actor] -= count
        if step:
            steps.append(step)
    return steps


@shared
@given(data=st.data())
def test_any_split_of_a_prompt_gives_the_same_bits(data, rig, twin) -> None:
    alone = twin(0, LENGTH)
    rig.open(1)
    fed = 0
    for size in cut(data.draw, LENGTH):
        rig.step({1: alone.tokens[fed : fed + size]})
        fed += size
        assert rig.row(1) == alone.rows[fed]
        assert torch.equal(rig.logits[1], alone.logits[fed - 1])


@shared
@given(steps=schedules(), seed=st.integers(0, 10**6))
def test_neighbours_that_join_and_leave_change_no_bit(steps, seed, rig, twin) -> None:
    slots = random.Random(seed).sample(range(1, rig.slots + 1), ACTORS)
    fed = dict.fromkeys(range(ACTORS), 0)
    rig.close(*rig.live)
    for slot in slots:
        rig.open(slot)
    for step in steps:
        rows = {}
        for actor, count in step:
            rows[slots[actor]] = twin(actor, LENGTH).tokens[fed[actor] : fed[actor] + count]
            fed[actor] += count
        results = rig.step(rows)
        for actor, _ in step:
            slot, alone = slots[actor], twin(actor, LENGTH)
            assert rig.row(slot) == alone.rows[fed[actor]]
            assert torch.equal(rig.logits[slot], alone.logits[fed[actor] - 1])
            assert results[slot].token == int(alone.logits[fed[actor] - 1].argmax())


def test_every_batch_size_gives_each_row_the_bits_it_has_alone(rig, twin) -> None:
    for count in range(1, 34):
        for slot in range(1, count + 1):
            rig.open(slot)
            rig.guest.load(slot, memoryview(twin(slot, 3).rows[2]))
        order = random.Random(count).sample(range(1, count + 1), count)
        rig.step({slot: twin(slot, 3).tokens[2:3] for slot in order})
        for slot in order:
            assert rig.row(slot) == twin(slot, 3).rows[3], f"{count} rows"
            assert torch.equal(rig.logits[slot], twin(slot, 3).logits[2]), f"{count} rows"


@shared
@given(moves=st.lists(st.tuples(st.sampled_from("slc"), st.integers(1, 8)), max_size=12))
def test_moves_between_slots_and_host_change_no_bit(moves, rig, twin) -> None:
    alone, slot = twin(1, LENGTH), 3
    rig.close(*rig.live)
    rig.open(slot)
    for fed, (kind, target) in enumerate(moves, 1):
        rig.step({slot: alone.tokens[fed - 1 : fed]})
        if kind == "c":
            rig.guest.copy(slot, [target] if target != slot else [])
        else:
            image = rig.row(slot)
            rig.guest.load(target, memoryview(image if kind == "s" else bytearray(image)))
        if target != slot:
            rig.close(slot)
            rig.live.add(target)
            slot = target
        assert rig.row(slot) == alone.rows[fed]


@pytest.mark.parametrize("length", [17, 64, 65, 300])
def test_prefill_equals_decode(length, rig, alone, text) -> None:
    tokens = text(9, length)
    twin = alone(rig.model, tokens)
    rig.open(5)
    rig.step({5: tokens})
    assert rig.row(5) == twin.rows[-1]
    assert torch.equal(rig.logits[5], twin.logits[-1])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_are_independent_at_every_number_of_threads(
    threads, make_model, make_rig, text
) -> None:
    torch.set_num_threads(threads)
    rig = make_rig(make_model(), slots=8)
    tokens = text(9, 261)  # wide enough that elementwise work is shared by the threads
    found = []
    for company, cuts in (({}, [261]), ({8: 3, 2: 1, 5: 27}, [130, 131])):
        rig.open(4)
        for slot in company:
            rig.open(slot)
        fed = 0
        for size in cuts:
            others = {slot: tokens[:count] for slot, count in company.items()}
            rig.step({**others, 4: tokens[fed : fed + size]})
            fed += size
        found.append((rig.row(4), rig.logits[4].tolist()))
    assert found[0] == found[1]


def test_a_step_on_another_thread_gives_the_same_bits(rig, twin) -> None:
    rig.open(1)
    engine = threading.Thread(target=rig.step, args=({1: twin(2, 20).tokens[:20]},))
    engine.start()
    engine.join()
    assert rig.row(1) == twin(2, 20).rows[20]


def test_weights_whose_rows_are_not_aligned_are_exact_too(make_model, make_rig, alone) -> None:
    from statevisor.guests.families.rwkv7 import Rwkv7Config

    odd = Rwkv7Config(
        layers=2, width=192, heads=3, ffn=200, rank_w=5, rank_a=7, rank_v=9, rank_g=11, vocab=61
    )
    model = make_model(config=odd)
    tokens = [3 * index % 61 for index in range(21)]
    twin, rig = alone(model, tokens), make_rig(model)
    for slot in range(1, 20):
        rig.open(slot)
        rig.step({slot: tokens[:slot]})
    rig.step({slot: tokens[slot:] for slot in range(1, 20)})
    for slot in range(1, 20):
        assert rig.row(slot) == twin.rows[-1]
        assert torch.equal(rig.logits[slot], twin.logits[-1])
