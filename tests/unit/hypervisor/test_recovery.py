"""What a start recovers unasked, and that it stands in nobody's way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from statevisor.hypervisor import scheduler
from statevisor.hypervisor.builder import Builder
from statevisor.hypervisor.commands import Append, CreateActor, Generate, Hibernate, Resume
from statevisor.hypervisor.errors import NoFreeSlot
from statevisor.hypervisor.replays import UNASKED
from statevisor.hypervisor.vocab import Tier
from statevisor.store.memory import MemoryCatalog


def residency(world: Any) -> Any:
    return world.visor._batchers["toy"].residency


async def tiers(world: Any) -> dict[str, str]:
    views, _ = await world.visor.actors()
    return {view.record.name: view.tier.value for view in views}


async def settled(world: Any) -> None:
    await world.visor._tasks.wait()


class Steps:
    """Which slots each step of a guest had, and how many tokens of each."""

    def __init__(self, world: Any) -> None:
        self.rows: list[dict[int, int]] = []
        self._more = asyncio.Event()
        step, loop = world.guest.step, asyncio.get_running_loop()

        def watched(plan: Any) -> Any:
            self.rows.append({row.slot: len(row.tokens) for row in plan.rows})
            loop.call_soon_threadsafe(self._more.set)
            return step(plan)

        world.guest.step = watched

    async def reach(self, count: int) -> int:
        """Wait for so many steps; returns how many there were."""
        async with asyncio.timeout(20):
            while len(self.rows) < count:
                self._more.clear()
                await self._more.wait()
        return len(self.rows)


async def crowd(worlds: Any, count: int, **settings: Any) -> Any:
    """Actors a0, a1, … used in this order, none with an image."""
    settings.setdefault("frames", 0)
    world = await worlds(**settings)
    for index in range(count):
        world.clock.seconds += 1
        await world.create(f"a{index}", f"the story of number {index}")
    return world


async def test_the_last_ones_used_are_ready_after_a_crash(worlds: Any) -> None:
    catalog = timed_catalog()
    world = await crowd(worlds, 6, slots=8, catalog=catalog, config={"recover_actors": 3})
    told = await world.say("a1", max_tokens=5)
    await world.crash()
    await settled(world)

    assert {name for name, tier in (await tiers(world)).items() if tier == "gpu"} == {
        "a1",
        "a4",
        "a5",
    }
    assert world.meter.counts["actors_recovered_total"] == 3
    replayed = world.meter.counts["replayed_tokens_total"]
    await world.say("a1")
    assert world.meter.counts["replayed_tokens_total"] == replayed
    assert told.position + 12 == (await world.visor.actor("a1")).record.position


def timed_catalog() -> Any:
    ticks = iter(range(1, 10**9))
    return MemoryCatalog(now_us=lambda: next(ticks))


async def test_a_turn_that_the_crash_broke_is_recovered_first(worlds: Any) -> None:
    world = await crowd(worlds, 5, slots=8, catalog=timed_catalog(), config={"recover_actors": 1})
    stream = await world.visor.generate(Generate(actor="a0", max_tokens=5000, ignore_eos=True))
    await anext(stream.__aiter__())
    await world.visor.append(Append(actor="a3", prompt=" and more"))
    await world.crash()
    await settled(world)

    assert (await tiers(world))["a0"] == "gpu"


async def test_broken_turns_are_closed_side_by_side(worlds: Any) -> None:
    """So that they share commits: a start does not take longer for every turn that was open."""
    world = await crowd(worlds, 6, slots=8)
    for index in range(6):
        talk = await world.visor.generate(
            Generate(actor=f"a{index}", max_tokens=10**6, ignore_eos=True)
        )
        await anext(talk.__aiter__())
    end_turn, at_once = world.catalog.end_turn, [0, 0]

    async def watched(*args: Any, **more: Any) -> Any:
        at_once[0] += 1
        at_once[1] = max(at_once)
        await asyncio.sleep(0)
        try:
            return await end_turn(*args, **more)
        finally:
            at_once[0] -= 1

    world.catalog.end_turn = watched
    await world.crash()
    await settled(world)

    assert at_once[1] == 6
    assert await world.catalog.open_turns() == ()


async def test_only_free_slots_and_frames_are_taken(worlds: Any) -> None:
    world = await crowd(worlds, 10, slots=4, frames=2)
    await world.crash()
    await settled(world)

    there = list((await tiers(world)).values())
    assert (there.count("gpu"), there.count("host")) == (3, 2)
    assert residency(world).slots.free == 1
    # with none: as if there were no such pass
    world.config["recover_actors"] = 0
    await world.crash()
    await settled(world)
    assert set((await tiers(world)).values()) == {"nvme"}


async def test_who_has_an_image_is_left_alone(worlds: Any) -> None:
    world = await crowd(worlds, 3, slots=8)
    await world.visor.hibernate(Hibernate(actor="a1", tier=Tier.NVME))
    await world.crash()
    await settled(world)

    assert await tiers(world) == {"a0": "gpu", "a1": "nvme", "a2": "gpu"}


async def test_the_tokens_are_bounded(worlds: Any) -> None:
    world = await crowd(worlds, 3, slots=8, catalog=timed_catalog(), config={"recover_tokens": 50})
    await world.create("long", "x" * 100)
    await world.crash()
    await settled(world)

    assert await tiers(world) == {"a0": "nvme", "a1": "gpu", "a2": "gpu", "long": "nvme"}


async def test_what_cannot_be_recovered_is_left_for_who_touches_it(worlds: Any) -> None:
    world = await crowd(worlds, 2, slots=8)
    world.build = "toy-2"
    await world.crash()
    await settled(world)

    assert set((await tiers(world)).values()) == {"nvme"}
    assert "actors_recovered_total" not in world.meter.counts


async def test_a_drain_ends_it_within_a_slice(worlds: Any) -> None:
    world = await long_and_short(worlds, unasked=True)
    steps = Steps(world)
    done = await steps.reach(1)
    world.visor._recovery.stop()
    await world.visor._tasks.wait()

    assert len(steps.rows) - done <= UNASKED // 64 + 1
    assert (await tiers(world))["long"] == "nvme"
    assert residency(world).slots.free == residency(world).slots.capacity


LONG = 8_000


async def long_and_short(worlds: Any, *, unasked: bool, slots: int = 4) -> Any:
    """After a crash: an actor that has a long replay before it, and one that has none."""
    tokens = 10**6 if unasked else 10
    config = {"step_tokens": 64, "checkpoint_tokens": 10**9, "recover_tokens": tokens}
    world = await worlds(slots=slots, frames=0, config=config)
    await world.create("short", None)
    await world.create("other", "some words")
    await world.visor.hibernate(Hibernate(actor="other", tier=Tier.NVME))
    await world.visor.create(CreateActor(name="long", prompt=tuple(b"abcdefgh") * (LONG // 8)))
    world.meter.counts.clear()
    await world.crash()
    return world


async def test_one_that_is_rebuilt_does_not_hold_up_one_that_talks(worlds: Any) -> None:
    """Counted in steps: every step of the talk has the talker's row, and the other's."""
    world = await long_and_short(worlds, unasked=False)
    await together(world)


async def together(world: Any) -> None:
    await world.say("short", "hello", max_tokens=1)
    steps = Steps(world)
    resuming = asyncio.create_task(world.visor.resume(Resume(actor="long")))
    begun = await steps.reach(1)
    await world.say("short", max_tokens=100)
    slot = next(a.slot for a in residency(world).actors.values() if a.record.name == "short")
    rows = steps.rows[begun:]
    mine = [index for index, row in enumerate(rows) if slot in row]
    assert not resuming.done()
    # the pending token, then one step for each token: none without a row of its own
    assert len(mine) == 100
    assert mine == list(range(mine[0], mine[0] + 100))
    assert all(len(row) == 2 for row in rows[mine[0] : mine[-1]])
    await resuming


async def test_were_the_longest_first_the_talk_would_stand_still(
    worlds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await long_and_short(worlds, unasked=False)
    plan = scheduler.plan

    def longest(works: Any, budget: int, turn: int) -> Any:
        chosen = max(range(len(works)), key=lambda index: len(works[index].gap))
        planned = plan([works[chosen]], budget, turn)
        return scheduler.Planned(planned.plan, (chosen,))

    monkeypatch.setattr(scheduler, "plan", longest)
    with pytest.raises(AssertionError):
        await together(world)


async def test_a_touched_actor_goes_before_those_that_nobody_asked_for(worlds: Any) -> None:
    world = await long_and_short(worlds, unasked=True)
    await world.create("touched", "y" * 2000)
    # again, with the pass going on beside it
    world.config["recover_actors"] = 2
    await world.visor.append(Append(actor="long", prompt="!"))
    await world.crash()
    steps = Steps(world)
    begun = await steps.reach(10)
    await world.visor.resume(Resume(actor="touched"))
    slot = next(a.slot for a in residency(world).actors.values() if a.record.name == "touched")
    rows = [row for row in steps.rows[begun:] if slot in row]
    beside = [row for row in rows if len(row) > 1]
    # slices that stood in the loop already come to their end; then there is nobody else
    assert sum(sum(row.values()) - row[slot] for row in beside) <= 2 * UNASKED
    assert len(rows) - len(beside) > 2000 // 64 - 2 * UNASKED // 32


async def want_its_slot(worlds: Any) -> None:
    """All other slots are busy: the one that is being rebuilt unasked gives way."""
    world = await long_and_short(worlds, unasked=True, slots=2)
    steps = Steps(world)
    await steps.reach(1)
    talk = await world.visor.generate(Generate(actor="short", prompt="a", max_tokens=10**6))
    await anext(talk.__aiter__())
    begun = len(steps.rows)
    try:
        view = await world.visor.resume(Resume(actor="other"))
    finally:
        talk.cancel()
        await talk.result()

    assert view.tier is Tier.GPU
    assert len(steps.rows) - begun <= UNASKED // 32 + 20
    assert (await tiers(world))["long"] == "nvme"


async def test_whoever_wants_the_slot_gets_it(worlds: Any) -> None:
    await want_its_slot(worlds)


async def test_without_patience_they_would_wait(
    worlds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Builder, "_patience", lambda self, actor: None)
    with pytest.raises((AssertionError, NoFreeSlot)):
        await want_its_slot(worlds)


async def test_once_asked_for_it_is_rebuilt_at_full_speed(worlds: Any) -> None:
    world = await long_and_short(worlds, unasked=True)
    steps = Steps(world)
    await steps.reach(6)
    replayed = world.meter.counts["replayed_tokens_total"]

    await world.visor.resume(Resume(actor="long"))

    # nothing was thrown away and nothing was replayed twice
    assert world.meter.counts["replayed_tokens_total"] == LONG  # BOS and all but the last
    assert 0 < replayed < LONG
    assert len(steps.rows) <= LONG // 64 + UNASKED // 64 + 20
