"""Turns whose steps begin before the journal has them and before their state was checked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor import openings
from statevisor.hypervisor.arrival import Arrival
from statevisor.hypervisor.commands import Generate, Hibernate, Snapshot
from statevisor.hypervisor.door import Door
from statevisor.hypervisor.errors import GenerationConflict, NoFreeSlot, Unavailable
from statevisor.hypervisor.lifecycle import Power
from statevisor.hypervisor.plan import StepPlan
from statevisor.hypervisor.residency import Residency
from statevisor.hypervisor.sampling import PenaltyCounts, SamplerSettings
from statevisor.hypervisor.turn import Goal, Turn
from statevisor.hypervisor.vocab import FinishReason, Tier

ENDLESS = 5000


class Held:
    """A catalog's `begin_turn` that waits for a word, and may refuse."""

    def __init__(self, catalog: Any) -> None:
        self._begin = catalog.begin_turn
        self.go = asyncio.Event()
        self.asked = 0
        self.error: Exception | None = None
        catalog.begin_turn = self._held

    async def _held(self, *args: Any, **given: Any) -> Any:
        self.asked += 1
        await self.go.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return await self._begin(*args, **given)


async def until(true: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if true():
            return
        await asyncio.sleep(0)
    raise TimeoutError


async def turns(count: int = 300) -> None:
    """So many rounds of the event loop, and of what other threads do meanwhile."""
    for _ in range(count):
        await asyncio.sleep(0)
    await asyncio.to_thread(int)


async def test_steps_begin_while_their_turn_is_committed_and_nothing_of_it_is_seen(
    world: Any,
) -> None:
    await world.create("a")
    await world.create("twin")
    expected = await world.say("twin", "and then", max_tokens=6)
    before = await world.visor.actor("a")
    held, steps = Held(world.catalog), world.guest.steps
    asked = asyncio.create_task(world.say("a", "and then", max_tokens=6))
    await until(lambda: world.guest.steps == steps + 6)
    await turns()
    assert not asked.done()
    assert held.asked == 1
    seen = await world.visor.actor("a")
    assert seen.record.position == seen.durable_position == before.record.position
    named = await world.visor.snapshot(Snapshot(actor="a"))
    assert named.position == before.record.position
    held.go.set()
    view = await asked
    assert view.token_ids == expected.token_ids
    assert view.position == expected.position


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_token_of_a_turn_that_is_not_in_the_journal_fails_no_other(
    world: Any, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    if not guarded:  # the control: no door before the gate
        push = Door.push

        def at_once(door: Door, turn: Any, events: Any) -> None:
            door._early = None
            push(door, turn, events)

        monkeypatch.setattr(Door, "push", at_once)
    await world.create("a")
    await world.create("other")
    other = await world.visor.generate(Generate(actor="other", max_tokens=ENDLESS, ignore_eos=True))
    held = Held(world.catalog)
    asked = asyncio.create_task(world.say("a", max_tokens=4))
    await until(lambda: held.asked == 1)
    steps = world.guest.steps
    ended = asyncio.ensure_future(other.result())
    await until(lambda: world.guest.steps >= steps + 20 or ended.done())
    held.go.set()
    await asyncio.wait([asked])
    other.cancel()
    finish = (await ended).finish
    assert (finish is FinishReason.CANCELLED) == guarded
    assert (asked.exception() is None and asked.result().error is None) == guarded


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_turn_that_is_refused_behind_its_steps_leaves_no_trace(
    world: Any, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    if not guarded:  # the control: the slot is kept, with what it has taken in

        async def keep(opening: openings.Opening, turn: Turn) -> None:
            turn.cancel()
            await turn.ended
            opening.residency.settle(opening.actor)

        monkeypatch.setattr(openings, "_undo", keep)
    await world.create("a")
    await world.create("twin")
    held, steps = Held(world.catalog), world.guest.steps
    held.error = Unavailable("the disk is full")
    asked = asyncio.create_task(world.say("a", "never said", max_tokens=9))
    await until(lambda: world.guest.steps > steps)
    held.go.set()
    with pytest.raises(Unavailable):
        await asked
    view = await world.visor.actor("a")
    assert (view.tier is Tier.NVME) == guarded
    assert view.record.position == (await world.visor.actor("twin")).record.position
    assert await world.catalog.open_turns() == ()
    mine, its = await world.say("a", "said"), await world.say("twin", "said")
    assert (mine.token_ids == its.token_ids) == guarded


async def test_a_turn_that_is_refused_while_its_state_comes_leaves_the_state_in_memory(
    world: Any,
) -> None:
    await world.create("a")
    await world.create("twin")
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.HOST))
    held = Held(world.catalog)
    held.go.set()
    held.error = Unavailable("the disk is full")
    with pytest.raises(Unavailable):
        await world.say("a", "never said", max_tokens=9)
    assert (await world.visor.actor("a")).tier is Tier.HOST
    mine, its = await world.say("a", "said"), await world.say("twin", "said")
    assert mine.token_ids == its.token_ids


async def test_behind_a_refused_turn_the_next_is_committed_before_its_steps(world: Any) -> None:
    await world.create("a")
    await world.create("b")
    held = Held(world.catalog)
    held.go.set()
    held.error = Unavailable("the disk is full")
    with pytest.raises(Unavailable):
        await world.say("a")
    held.go.clear()
    steps = world.guest.steps
    for name, ahead in (("b", False), ("b", True)):
        asked = asyncio.create_task(world.say(name, max_tokens=3))
        asks = held.asked
        await until(lambda asks=asks: held.asked > asks)  # type: ignore[misc]
        await turns()
        if ahead:
            await until(lambda steps=steps: world.guest.steps > steps)  # type: ignore[misc]
        assert (world.guest.steps > steps) == ahead
        held.go.set()
        await asked
        held.go.clear()
        steps = world.guest.steps


async def test_a_turn_with_a_condition_is_committed_before_its_steps(world: Any) -> None:
    await world.create("a")
    steps = world.guest.steps
    with pytest.raises(GenerationConflict):
        await world.say("a", if_generation=77)
    assert world.guest.steps == steps
    assert (await world.visor.actor("a")).tier is Tier.GPU  # it costs nobody a slot


@pytest.mark.parametrize("guarded", [True, False])
async def test_what_is_drawn_from_a_damaged_frame_is_never_told(
    world: Any, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    if not guarded:  # the control: the check's word is not heeded
        sound = Arrival.sound

        async def deaf(arrival: Arrival) -> bool:
            await sound(arrival)
            return True

        monkeypatch.setattr(Arrival, "sound", deaf)
    await world.create("a")
    await world.create("twin")
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.HOST))
    frames = world.visor._roster.residency(await world.visor._roster.find("a")).frames
    (key,) = frames.oldest()
    frames.peek(key)[3] ^= 1
    mine, its = await world.say("a", "now"), await world.say("twin", "now")
    assert (mine.token_ids == its.token_ids) == guarded
    assert await world.catalog.open_turns() == ()
    if guarded:
        assert world.meter.counts["image_checksum_failures_total"] == 1
        assert (await world.say("a")).token_ids == (await world.say("twin")).token_ids


async def test_a_turn_whose_state_cannot_be_made_again_ends_in_the_journal(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.create("a")
    await world.create("twin")
    await world.append("twin", "lost")
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.HOST))
    frames = world.visor._roster.residency(await world.visor._roster.find("a")).frames
    (key,) = frames.oldest()
    frames.peek(key)[3] ^= 1

    async def full(*_: Any) -> None:
        raise NoFreeSlot

    with monkeypatch.context() as patch:
        patch.setattr(Residency, "resume", full)
        with pytest.raises(NoFreeSlot):
            await world.say("a", "lost")
    assert await world.catalog.open_turns() == ()
    assert (await world.visor.actor("a")).tier is Tier.NVME
    # the prompt was committed: it is part of the transcript
    assert (await world.say("a", "on")).token_ids == (await world.say("twin", "on")).token_ids


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_turn_that_cannot_be_prepared_leaves_its_actor_at_rest(
    world: Any, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    await world.create("a")
    await world.create("twin")
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.HOST))

    async def unreadable(*_: Any) -> Any:
        raise Unavailable("the catalog cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(openings, "_pending", unreadable)
        if not guarded:  # the control: nobody waits for the state that is on its way

            async def nobody(*_: Any) -> None:
                return

            patch.setattr(Residency, "land", nobody)
        with pytest.raises(Unavailable):
            await world.say("a", "now")
    if not guarded:
        assert (await world.visor._roster.find("a")).power is Power.RESUMING
        return
    assert (await world.visor.actor("a")).tier is Tier.GPU
    mine, its = await world.say("a", "now"), await world.say("twin", "now")
    assert mine.token_ids == its.token_ids


class Noting(ToyGuest):
    """Keeps which slots are loaded and stepped, in that order."""

    seen: list[tuple[str, int]]

    def load(self, slot: int, row: memoryview) -> None:
        self.seen.append(("load", slot))
        super().load(slot, row)

    def step(self, plan: StepPlan) -> Any:
        self.seen += [("step", row.slot) for row in plan.rows]
        return super().step(plan)


@pytest.mark.parametrize("guarded", [True, False])
async def test_no_step_is_handed_over_before_the_state_it_needs(
    worlds: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    if not guarded:  # the control: the copy is handed over once the check is done
        init = Arrival.__init__

        def late(arrival: Arrival, copy: Any, check: Any, *, began: float) -> None:
            async def behind() -> None:
                await asyncio.sleep(0.01)
                await copy

            init(arrival, behind(), check, began=began)

        monkeypatch.setattr(Arrival, "__init__", late)
    world = await worlds(guest_type=Noting)
    world.guest.seen = []
    await world.create("a")
    await world.create("twin")
    await world.create("other")
    other = await world.visor.generate(Generate(actor="other", max_tokens=ENDLESS, ignore_eos=True))
    same = True
    for _ in range(8):
        await world.visor.hibernate(Hibernate(actor="a", tier=Tier.HOST))
        world.guest.seen.clear()
        mine, its = await world.say("a", max_tokens=2), await world.say("twin", max_tokens=2)
        slot = (await world.visor._roster.find("a")).slot
        about = [what for what, where in world.guest.seen if where == slot]
        same = same and mine.token_ids == its.token_ids and about[0] == "load"
        if not same:
            break
    other.cancel()
    await other.result()
    assert same == guarded


async def test_what_a_turn_waits_for_is_not_reached_before_its_beginning_is_committed() -> None:
    turn = Turn(
        id="t",
        slot=1,
        goal=Goal(max_tokens=3),
        gap=(1, 2, 3),
        position=8,
        committed=5,
        counts=PenaltyCounts(settings=SamplerSettings()),
        tokenizer=ToyGuest().tokenizer,
        push=lambda turn, events: None,
    )
    waiting = asyncio.create_task(turn.reached(8))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert not await _at_once(turn.reached(6))
    turn.committed = 8
    assert await waiting


async def _at_once(wait: Any) -> bool:
    task = asyncio.ensure_future(wait)
    await asyncio.sleep(0)
    done = task.done()
    task.cancel()
    return done
