"""What every guest promises: the toy and a real RWKV-7 on the CPU alike."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from statevisor.guests.families.rwkv7 import Rwkv7Config, Rwkv7Model, random_weights
from statevisor.guests.ops_cpu import CpuOps
from statevisor.guests.runner import Runner
from statevisor.guests.tokenizer_bytes import ByteTokenizer
from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.errors import InvalidRequest
from statevisor.hypervisor.plan import DRAWN, Row, RowResult, StepPlan
from statevisor.hypervisor.ports import Guest, Mutation
from statevisor.hypervisor.sampling import Draw, SamplerSettings

SLOTS = 6
HOT = SamplerSettings(temperature=0.8, top_k=40)


def _rwkv7(state_dtype: str) -> Guest:
    config = Rwkv7Config(
        layers=2, width=128, heads=2, ffn=256, rank_w=8, rank_a=8, rank_v=8, rank_g=16, vocab=272
    )
    ops = CpuOps(1)
    model = Rwkv7Model.build(config, random_weights(config, seed=3), ops, state_dtype)
    ops.admit(model.matrices())
    return Runner(name="tiny", model=model, tokenizer=ByteTokenizer(), slots=SLOTS, step_tokens=512)


@pytest.fixture(scope="module", params=["toy", "rwkv7-F32", "rwkv7-F16"])
def guest(request: pytest.FixtureRequest) -> Guest:
    """A guest whose slots hold whatever the tests before have left there."""
    if request.param == "toy":
        return ToyGuest(slots=SLOTS)
    return _rwkv7(request.param.removeprefix("rwkv7-"))


def tokens(seed: int, count: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(256), k=count))


def draw(seed: int, position: int) -> Draw:
    return Draw(seed=seed, position=position, settings=HOT)


def feed(guest: Guest, rows: dict[int, Sequence[int]], seed: int = 5) -> tuple[RowResult, ...]:
    plan = StepPlan(
        rows=tuple(
            Row(slot=slot, tokens=tuple(fed), draw=draw(seed, 9)) for slot, fed in rows.items()
        )
    )
    return guest.step(plan)


def row(guest: Guest, slot: int) -> bytes:
    out = bytearray(guest.layout.row_bytes)
    guest.save(slot, memoryview(out))
    return bytes(out)


def fresh(guest: Guest, *slots: int) -> None:
    for slot in slots:
        guest.clear(slot)


def test_it_describes_itself(guest: Guest) -> None:
    assert guest.fingerprints.layout == guest.layout.fingerprint
    assert guest.fingerprints.weights
    assert guest.fingerprints.build
    assert guest.slots == SLOTS
    assert guest.step_tokens >= 1
    assert set(guest.rules) == {"decay", "scale", "zero", "blend", "add", "noise", "set"}
    bos = guest.tokenizer.bos
    assert bos is not None
    assert bos < guest.vocab_size
    assert guest.tokenizer.token_bytes(bos) == b""
    assert guest.tokenizer.encode("hé") == tuple("hé".encode())


def test_the_empty_state_is_always_the_same(guest: Guest) -> None:
    feed(guest, {1: tokens(1, 5)})
    fresh(guest, 1, 2)
    assert row(guest, 1) == row(guest, 2)


@pytest.mark.parametrize("cut", [1, 2, 7, 16, 17])
def test_any_split_gives_the_same_row_and_token(guest: Guest, cut: int) -> None:
    fed = tokens(2, 40)
    fresh(guest, 1, 2)
    (whole,) = feed(guest, {1: fed})
    for start in range(0, len(fed), cut):
        (last,) = feed(guest, {2: fed[start : start + cut]})
    assert row(guest, 1) == row(guest, 2)
    assert last == whole
    assert whole.token is not None
    assert 0 <= whole.token < guest.vocab_size


def test_neighbours_and_slots_change_nothing(guest: Guest) -> None:
    fed = tokens(3, 9)
    fresh(guest, 1)
    (alone,) = feed(guest, {1: fed})
    expected = row(guest, 1)
    for slot in (2, SLOTS):
        others = {other: tokens(other, 3 * other) for other in range(1, SLOTS + 1)}
        rows = {**others, slot: fed}
        fresh(guest, *rows)
        results = dict(zip(rows, feed(guest, rows), strict=True))
        assert row(guest, slot) == expected
        assert results[slot] == alone


def test_slots_outside_the_plan_are_not_touched(guest: Guest) -> None:
    before = {slot: row(guest, slot) for slot in range(2, SLOTS + 1)}
    feed(guest, {1: tokens(4, 20)})
    assert {slot: row(guest, slot) for slot in before} == before


def test_rows_move_part_by_part_as_they_do_whole(guest: Guest) -> None:
    fresh(guest, 1, 2)
    feed(guest, {1: tokens(5, 11)})
    saved, size = row(guest, 1), guest.layout.row_bytes
    cuts = [0, 1, size // 2 + 3, size]
    for start, stop in itertools.pairwise(cuts):
        part = bytearray(stop - start)
        guest.save(1, memoryview(part), start)
        assert part == saved[start:stop]
        before = row(guest, 2)
        guest.load(2, memoryview(part), start)
        assert row(guest, 2) == before[:start] + saved[start:stop] + before[stop:]
    assert row(guest, 2) == saved
    assert row(guest, 1) == saved


def test_rows_move_without_change(guest: Guest) -> None:
    fresh(guest, 1)
    feed(guest, {1: tokens(5, 11)})
    saved = row(guest, 1)
    guest.load(2, memoryview(bytearray(saved)))
    guest.copy(1, (3, 4))
    for slot in (2, 3, 4):
        assert row(guest, slot) == saved
    results = [feed(guest, {slot: (65,)})[0] for slot in (1, 2, 3, 4)]
    assert all(result == results[0] for result in results)
    assert row(guest, 4) == row(guest, 1) != saved


@pytest.mark.parametrize("slots", [(0,), (SLOTS + 1,), (-1,), (1, 1)])
def test_a_plan_that_names_no_slot_or_one_twice_is_refused_whole(
    guest: Guest, slots: tuple[int, ...]
) -> None:
    before = [row(guest, slot) for slot in range(1, SLOTS + 1)]
    rows = tuple(Row(slot=slot, tokens=(65,)) for slot in (2, *slots))
    with pytest.raises(ValueError, match="slot"):
        guest.step(StepPlan(rows=rows))
    assert [row(guest, slot) for slot in range(1, SLOTS + 1)] == before


def test_the_draw_depends_on_seed_and_position_alone(guest: Guest) -> None:
    fresh(guest, 1)
    feed(guest, {1: tokens(6, 8)})
    guest.copy(1, (2, 3, 4, 5, 6))
    keys = {1: (7, 1), 2: (7, 1), 3: (8, 1), 4: (7, 2), 5: (9, 1), 6: (7, 3)}
    plan = StepPlan(
        rows=tuple(
            Row(slot=slot, tokens=(66,), draw=draw(seed, at)) for slot, (seed, at) in keys.items()
        )
    )
    drawn = [result.token for result in guest.step(plan)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_frames_hold_whole_rows(guest: Guest) -> None:
    frames = guest.frames(3)
    assert frames.nbytes == 3 * guest.layout.row_bytes
    guest.save(1, frames[guest.layout.row_bytes : 2 * guest.layout.row_bytes])
    assert bytes(frames[guest.layout.row_bytes : 2 * guest.layout.row_bytes]) == row(guest, 1)
    assert guest.frames(0).nbytes == 0


def test_a_rule_is_pure_and_selects(guest: Guest) -> None:
    fresh(guest, 1, 2)
    feed(guest, {1: tokens(7, 12), 2: tokens(8, 12)})
    own, other = bytearray(row(guest, 1)), bytearray(row(guest, 2))
    views = [memoryview(own), memoryview(other)]
    family = guest.layout.families[-1].name
    made = guest.mutate(Mutation(rule="set", params={}, families=(family,), layers=(1,)), views)
    assert (bytes(own), bytes(other)) == (row(guest, 1), row(guest, 2))
    changed = {
        (part.family, part.layer)
        for part in guest.diff(memoryview(own), memoryview(bytearray(made)))
        if part.distance
    }
    assert changed == {(family, 1)}
    assert guest.mutate(Mutation(rule="set", params={}), views) == bytes(other)


@pytest.mark.parametrize(
    "bad",
    [
        Mutation(rule="nonsense", params={}),
        Mutation(rule="decay", params={"alpha": "x"}),
        Mutation(rule="zero", params={}, families=("nothing",)),
    ],
)
def test_a_bad_rule_is_refused(guest: Guest, bad: Mutation) -> None:
    own = memoryview(bytearray(row(guest, 1)))
    with pytest.raises(InvalidRequest):
        guest.mutate(bad, [own])


def test_a_state_differs_from_itself_by_nothing(guest: Guest) -> None:
    own = memoryview(bytearray(row(guest, 1)))
    parts = guest.diff(own, own)
    assert len(parts) == sum(family.shape[0] for family in guest.layout.families)
    assert all(part.distance == 0 for part in parts)
    assert guest.finite(own)


def test_a_state_that_is_not_finite_is_told_and_stays_alone(guest: Guest) -> None:
    bad = memoryview(bytearray(b"\xff" * guest.layout.row_bytes))  # -1, and NaN in every float
    assert not guest.finite(bad)
    fresh(guest, 1, 2, 3)
    (control,) = feed(guest, {3: tokens(9, 4)})
    guest.load(1, bad)
    sick, well = feed(guest, {1: (65,), 2: tokens(9, 4)})
    assert not sick.finite
    assert sick.token is None
    assert well == control


# -- rows that follow -----------------------------------------------------------------------------
def chain(guest: Guest, plans: Sequence[StepPlan]) -> list[tuple[RowResult, ...]]:
    """Every step begins before the one before it is collected."""
    assert guest.steps_ahead >= 1
    waiting, results = [guest.submit(plans[0])], []
    for plan in plans[1:]:
        waiting.append(guest.submit(plan))
        results += guest.collect(waiting.pop(0))
    assert guest.waits(waiting[0]) in (True, False)
    results += guest.collect(waiting.pop())
    assert all(len(result) == len(plans[0].rows) for result in results)
    return results


def following(slot: int, count: int, stops: frozenset[int] = frozenset()) -> list[StepPlan]:
    """A row and `count` that follow it."""
    fed = [tokens(10, 4), *[(DRAWN,)] * count]
    return [
        StepPlan(rows=(Row(slot=slot, tokens=text, draw=draw(3, at), stops=stops),))
        for at, text in enumerate(fed)
    ]


def test_rows_that_follow_are_rows_with_the_drawn_token(guest: Guest) -> None:
    fresh(guest, 1, 2)
    drawn = [results[0].token for results in chain(guest, following(1, 5))]
    last: tuple[int, ...] = tokens(10, 4)
    for at, token in enumerate(drawn):
        (result,) = guest.step(StepPlan(rows=(Row(slot=2, tokens=last, draw=draw(3, at)),)))
        assert result.token == token
        assert token is not None
        last = (token,)
    assert row(guest, 1) == row(guest, 2)


def test_behind_a_stop_nothing_is_run(guest: Guest) -> None:
    fresh(guest, 1, 2)
    free = chain(guest, following(1, 3))
    stop = free[1][0].token
    assert stop is not None
    assert free[0][0].token != stop, "the stop must not be the first token"
    results = chain(guest, following(2, 3, frozenset({stop})))
    assert [result.ran for (result,) in results] == [True, True, False, False]
    assert results[:2] == free[:2]
    fresh(guest, 1)
    chain(guest, following(1, 1))
    assert row(guest, 2) == row(guest, 1)


def test_behind_a_row_that_drew_nothing_nothing_is_run(guest: Guest) -> None:
    fresh(guest, 1, 2)
    plans = [
        StepPlan(rows=(Row(slot=1, tokens=(65,)), Row(slot=2, tokens=(66,), draw=draw(1, 1)))),
        StepPlan(rows=(Row(slot=2, tokens=(DRAWN,)), Row(slot=1, tokens=(DRAWN,)))),
    ]
    _, (ran, idle) = chain(guest, plans)
    assert (ran.ran, idle.ran) == (True, False)
    fresh(guest, 3)
    feed(guest, {3: (65,)})
    assert row(guest, 1) == row(guest, 3)
