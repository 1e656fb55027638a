"""Faults that other engines had with recurrent states, each as a test that would have found it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

import pytest
import torch

from statevisor.guests.ops import RaggedBatch

BOS = 63


@pytest.mark.parametrize("length", [1, 17])
def test_a_poisoned_slot_gives_a_new_actor_nothing_but_its_own_tokens(length, rig, twin) -> None:
    for slot in range(1, rig.slots + 1, 3):
        rig.open(slot)
        result = rig.step({slot: twin(slot, length).tokens[:length]})[slot]
        assert result.finite
        assert rig.row(slot) == twin(slot, length).rows[length]
        rig.close(slot)


@pytest.mark.parametrize("first", [5, BOS])
def test_a_first_token_in_a_used_slot_is_no_continuation(first, rig, alone, text) -> None:
    rig.open(1)
    rig.step({1: text(0, 100)})
    rig.close(1)
    rig.open(1)
    rig.step({1: [first]})
    assert torch.equal(rig.logits[1], alone(rig.model, [first]).logits[0])


def test_finished_rows_are_not_written_by_later_steps(rig, twin) -> None:
    for slot in range(1, 9):
        rig.open(slot)
    rig.step({slot: twin(slot, 4).tokens[:2] for slot in range(1, 9)})
    rig.close(2, 4, 5, 6, 8)
    for slot in (4, 8):
        rig.open(slot)
    # The watched step compares every slot outside the plan, the just closed ones among them.
    rig.step({4: twin(14, 4).tokens[:2], 8: twin(18, 4).tokens[:2]})
    rig.step({slot: twin(slot, 4).tokens[2:4] for slot in (7, 3, 1)})
    rig.step({8: twin(18, 4).tokens[2:4], 4: twin(14, 4).tokens[2:4]})
    for slot, actor in {1: 1, 3: 3, 7: 7, 4: 14, 8: 18}.items():
        assert rig.row(slot) == twin(actor, 4).rows[4]


def test_the_last_slot_is_no_place_for_padding(rig, twin) -> None:
    last = rig.slots
    rig.open(last)
    rig.step({last: twin(1, 3).tokens[:3]})
    for count in (1, 3, 5, 15):
        for slot in range(1, count + 1):
            rig.open(slot)
        rig.step({slot: twin(2, 3).tokens[:3] for slot in range(1, count + 1)})
        assert rig.row(last) == twin(1, 3).rows[3]


def test_slots_beyond_2_to_the_31_elements_are_reached(tmp_path, model) -> None:
    """Rows lie 2^30 elements apart in a sparse file, so the last offset overflows 32 bits."""
    ops, config = model.ops, model.weights.config
    generator = torch.Generator().manual_seed(4)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    apart = 2**30
    wide = torch.from_file(
        str(tmp_path / "bank"), shared=True, size=3 * apart + 8192, dtype=torch.float32
    )
    strides = (64 * 64, 64, 1)
    far = wide.as_strided((4, config.heads, 64, 64), (apart, *strides))
    far_shift = wide.as_strided((4, config.width), (apart, 1))
    near, near_shift = torch.zeros(4, config.heads, 64, 64), torch.zeros(4, config.width)
    slots = torch.tensor([3, 1, 2])
    batch = RaggedBatch(
        tokens=torch.zeros(3, dtype=torch.int64),
        slots=slots,
        starts=torch.arange(4),
        rows=torch.arange(3),
        firsts=torch.ones(3, dtype=torch.bool),
        lasts=torch.arange(3),
        longest=1,
    )
    inputs = [drawn(3, config.heads, 64) * 0.1 for _ in range(6)]
    x, layer = drawn(3, config.width), model.weights.layers[0]
    with torch.inference_mode():
        for state, shift in ((near, near_shift), (far, far_shift)):
            ops.shift_mix(x, layer.ln1_weight, layer.ln1_bias, 1e-5, layer.mixes, shift, batch)
            assert torch.equal(shift[slots], near_shift[slots])
            for slot in (1, 2, 3):
                state[slot] = slot  # also where the shift of that slot was
            ops.wkv7(*inputs, state, batch)
            assert torch.equal(state[1:], near[1:])
    assert not far[0].any()


def test_an_actor_that_is_not_finite_is_flagged_and_harms_no_other(rig, twin) -> None:
    for slot in range(1, 9):
        rig.open(slot)
    rig.step({slot: twin(slot, 14).tokens[:10] for slot in range(1, 9)})
    rig.guest.bank.views["wkv"][4, 1, 0, 3, 5] = torch.inf
    for at in range(10, 14):
        results = rig.step({slot: twin(slot, 14).tokens[at : at + 1] for slot in range(1, 9)})
        assert {slot for slot, result in results.items() if not result.finite} == {4}
        assert results[4].token is None
    assert not rig.guest.finite(memoryview(rig.row(4)))
    rig.close(4)
    rig.open(4)
    rig.step({4: twin(14, 14).tokens[:14]})
    assert rig.row(4) == twin(14, 14).rows[14]
    for slot in (1, 2, 3, 5, 6, 7, 8):
        assert rig.row(slot) == twin(slot, 14).rows[14]


def test_one_image_restored_fifty_times_has_one_future(model, make_rig, text) -> None:
    rig = make_rig(model, slots=4)
    rig.open(1)
    rig.step({1: text(0, 12)})
    image = rig.row(1)
    futures = set()
    for turn in range(50):
        slot = 2 + turn % 3
        rig.live.add(slot)  # dirty: it still holds what the turn before made of it
        rig.guest.load(slot, memoryview(image))
        tokens = rig.greedy(slot, 7, 16)
        futures.add((tuple(tokens), hashlib.sha256(rig.row(slot)).hexdigest()))
    assert len(futures) == 1


def test_interleaved_actors_of_several_turns_equal_actors_alone(rig, twin) -> None:
    order = random.Random(5)
    actors = range(8)
    fed = dict.fromkeys(actors, 0)
    for actor in actors:
        rig.open(actor + 1)
    while min(fed.values()) < 20:
        present = [actor for actor in actors if fed[actor] < 20]
        rows = {}
        for actor in order.sample(present, min(5, len(present))):
            count = min(order.choice((1, 1, 4)), 20 - fed[actor])
            rows[actor + 1] = twin(actor, 20).tokens[fed[actor] : fed[actor] + count]
            fed[actor] += count
        rig.step(rows)
    for actor in actors:
        assert rig.row(actor + 1) == twin(actor, 20).rows[20]


def test_steps_of_one_size_on_other_slots_stay_in_their_slots(rig, twin) -> None:
    for slot in (1, 2, 3, 4):
        rig.open(slot)
    fed = dict.fromkeys((1, 2, 3, 4), 0)
    for pair in ((1, 2), (3, 4), (4, 1), (2, 3), (3, 1)):
        rows = {}
        for slot in pair:
            rows[slot] = twin(slot, 4).tokens[fed[slot] : fed[slot] + 1]
            fed[slot] += 1
        rig.step(rows)
        for slot, count in fed.items():
            assert count == 0 or rig.row(slot) == twin(slot, 4).rows[count]


def test_equal_prompts_at_the_same_time_have_one_answer(rig, text) -> None:
    slots = range(1, 14)
    for slot in slots:
        rig.open(slot)
    rows: dict[int, Sequence[int]] = {slot: text(0, 9) for slot in slots}
    answers: dict[int, list[int]] = {slot: [] for slot in slots}
    for _ in range(8):
        for slot, result in rig.step(rows).items():
            answers[slot].append(result.token)
            rows[slot] = [result.token]
    assert len({tuple(answer) for answer in answers.values()}) == 1


@pytest.mark.parametrize("family", ["wkv", "shift_att", "shift_ffn"])
@pytest.mark.parametrize("layer", [0, 1])
def test_every_part_of_a_state_is_needed_to_resume(family, layer, rig, twin) -> None:
    rig.open(1)
    rig.open(2)
    for slot in (1, 2):
        rig.guest.load(slot, memoryview(twin(0, 12).rows[11]))
    rig.guest.bank.views[family][2, layer] = 0
    rig.step({1: twin(0, 12).tokens[11:12]})
    rig.step({2: twin(0, 12).tokens[11:12]})
    assert torch.equal(rig.logits[1], twin(0, 12).logits[11])
    assert not torch.equal(rig.logits[2], rig.logits[1])


@pytest.mark.parametrize("count", range(1, 10))
def test_tokens_after_a_resume_are_absorbed_once_in_one_call_or_many(count, rig, twin) -> None:
    alone = twin(0, 20)
    for slot in (1, 2):
        rig.open(slot)
        rig.guest.load(slot, memoryview(alone.rows[10]))
    rig.step({1: alone.tokens[10 : 10 + count]})
    for at in range(10, 10 + count):
        rig.step({2: alone.tokens[at : at + 1]})
    assert rig.row(1) == rig.row(2) == alone.rows[10 + count]


def test_a_cleared_slot_has_forgotten_its_codeword(rig, alone, text) -> None:
    codeword, question = text(77, 20), text(78, 6)
    rig.open(1)
    rig.step({1: codeword})
    rig.guest.clear(1)
    rig.step({1: question})
    fresh = alone(rig.model, question)
    assert rig.row(1) == fresh.rows[-1]
    assert torch.equal(rig.logits[1], fresh.logits[-1])


@pytest.mark.parametrize("rows", [16, 32])
@pytest.mark.parametrize("pad", [0, 17])
def test_a_prompt_among_padding_rows_is_as_without(rows, pad, rig, twin) -> None:
    forward, absent = rig.guest._forward, rows - 1

    def step(batch: RaggedBatch) -> torch.Tensor:
        more = torch.arange(1, absent + 1)
        ends = batch.starts[-1]
        filled = RaggedBatch(
            tokens=torch.cat([batch.tokens, torch.full((absent,), pad)]),
            slots=torch.cat([batch.slots, more * 0]),
            starts=torch.cat([batch.starts, ends + more]),
            rows=torch.cat([batch.rows, more]),
            firsts=torch.cat([batch.firsts, more > 0]),
            lasts=torch.cat([batch.lasts, ends + more - 1]),
            longest=batch.longest,
        )
        return forward(filled)[:1]

    rig.guest._forward = step
    rig.open(3)
    rig.step({3: twin(6, 13).tokens[:13]})
    assert rig.row(3) == twin(6, 13).rows[13]
    assert torch.equal(rig.logits[3], twin(6, 13).logits[12])
