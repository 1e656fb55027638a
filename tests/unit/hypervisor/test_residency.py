"""Moves between tiers change no byte and lose no slot; who has to wait waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from statevisor.guests.toy import POISON
from statevisor.hypervisor.commands import (
    CreateActor,
    DeleteActor,
    Evict,
    Fork,
    Generate,
    Hibernate,
    Resume,
    UpdateActor,
)
from statevisor.hypervisor.errors import (
    ActorNotFound,
    IncompatibleImage,
    InvalidRequest,
    NoFreeSlot,
)
from statevisor.hypervisor.vocab import FinishReason, Tier

STORY = "once upon a time there was a fox"


async def twins(world: Any, *names: str) -> None:
    for name in names:
        await world.create(name, STORY)


async def tier_of(world: Any, name: str) -> Tier:
    return (await world.visor.actor(name)).tier


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.NVME])
async def test_a_move_down_and_up_changes_nothing(world: Any, tier: Tier) -> None:
    await twins(world, "moved", "stays")
    view = await world.visor.hibernate(Hibernate(actor="moved", tier=tier))
    assert (view.status, view.tier) == ("hibernated", tier)
    view = await world.visor.resume(Resume(actor="moved"))
    assert (view.status, view.tier) == ("idle", Tier.GPU)
    assert (await world.say("moved")).token_ids == (await world.say("stays")).token_ids


async def test_moving_to_where_one_is_does_nothing(world: Any) -> None:
    await twins(world, "a")
    assert await world.visor.resume(Resume(actor="a")) == await world.visor.actor("a")
    for tier in (Tier.HOST, Tier.NVME):
        first = await world.visor.hibernate(Hibernate(actor="a", tier=tier))
        assert await world.visor.hibernate(Hibernate(actor="a", tier=tier)) == first


async def test_hibernate_from_host_to_nvme_frees_the_frame(world: Any) -> None:
    await twins(world, "a", "twin")
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.HOST))
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.NVME))
    assert (await world.visor.tiers())[1].slots_used == 0
    assert (await world.say("a")).token_ids == (await world.say("twin")).token_ids


async def test_an_empty_actor_hibernates_and_resumes(world: Any) -> None:
    await world.create("a", None)
    await world.visor.resume(Resume(actor="a"))
    for tier in (Tier.HOST, Tier.NVME):
        await world.visor.hibernate(Hibernate(actor="a", tier=tier))
    await world.create("twin", None)
    assert (await world.say("a", "x")).token_ids == (await world.say("twin", "x")).token_ids


async def test_more_actors_than_slots_and_frames_all_stay_exact(
    worlds: Callable[..., Any],
) -> None:
    small, large = await worlds(slots=2, frames=1), await worlds(slots=16)
    for world in (small, large):
        for index in range(7):
            await world.create(f"a{index}", STORY[: index + 3])
    for _ in range(3):
        for index in range(7):
            one, other = await small.say(f"a{index}"), await large.say(f"a{index}")
            assert one.token_ids == other.token_ids
        small.check()


async def test_a_pinned_actor_is_not_evicted_by_the_policy(worlds: Callable[..., Any]) -> None:
    world = await worlds(slots=1)
    await twins(world, "pinned")
    await world.visor.update(UpdateActor(actor="pinned", pinned=True))
    view = await world.visor.create(CreateActor(name="other", prompt="x"))
    assert (view.status, view.tier) == ("hibernated", Tier.NVME)  # committed, absorbed later
    with pytest.raises(NoFreeSlot):
        await world.say("other")
    await world.visor.update(UpdateActor(actor="pinned", pinned=False))
    assert len((await world.say("other")).token_ids) == 12


async def test_whoever_waits_for_a_slot_gets_the_next_one(worlds: Callable[..., Any]) -> None:
    world = await worlds(slots=1, config={"slot_wait_s": 5.0})
    await twins(world, "a", "b")
    running = await world.visor.generate(Generate(actor="a", max_tokens=3000, ignore_eos=True))
    waiting = asyncio.create_task(world.say("b"))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    running.cancel()
    await running.result()
    assert len((await waiting).token_ids) == 12


async def test_a_full_host_tier_is_waited_for_and_then_refused(worlds: Callable[..., Any]) -> None:
    world = await worlds(frames=1, config={"slot_wait_s": 0.3})
    await twins(world, "a", "b")
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.HOST))
    holder = (await world.visor._roster.find("a")).mailbox
    assert holder.try_enter()
    waiting = asyncio.create_task(world.visor.hibernate(Hibernate(actor="b", tier=Tier.HOST)))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    holder.leave()
    assert (await waiting).tier is Tier.HOST
    assert await tier_of(world, "a") is Tier.NVME
    other = (await world.visor._roster.find("b")).mailbox
    assert other.try_enter()
    await world.visor.resume(Resume(actor="a"))
    with pytest.raises(NoFreeSlot):
        await world.visor.hibernate(Hibernate(actor="a", tier=Tier.HOST))
    other.leave()


async def test_without_a_host_tier_actors_go_down_to_nvme(worlds: Callable[..., Any]) -> None:
    world = await worlds(slots=1, frames=0)
    await twins(world, "a", "b", "c")
    assert [await tier_of(world, name) for name in "abc"] == [Tier.NVME, Tier.NVME, Tier.GPU]
    with pytest.raises(NoFreeSlot):
        await world.visor.hibernate(Hibernate(actor="c", tier=Tier.HOST))


async def test_forks_resume_from_their_parents_slot_without_replay(world: Any) -> None:
    await twins(world, "a")
    views = await world.visor.fork(Fork(actor="a", count=3, seeds=(7, 7, 7)))
    before = world.meter.counts.get("replayed_tokens_total", 0)
    told = [await world.say(view.record.name) for view in views]
    assert world.meter.counts.get("replayed_tokens_total", 0) == before
    assert {view.token_ids for view in told} == {(await world.say("a")).token_ids}


async def test_children_that_wake_at_one_place_share_one_rebuild(
    worlds: Callable[..., Any],
) -> None:
    world = await worlds(slots=8, config={"step_tokens": 4})
    await world.create("a", STORY * 10)
    await world.say("a", " and", max_tokens=5)
    at = len(STORY) * 10 + 1
    children = await world.visor.fork(Fork(actor="a", count=6, at=at, seeds=(7,) * 6))
    before = world.meter.counts.get("replayed_tokens_total", 0)
    told = await asyncio.gather(*(world.say(view.record.name) for view in children))
    assert world.meter.counts["replayed_tokens_total"] - before == at - 1
    assert len({view.token_ids for view in told}) == 1
    await world.create("twin", STORY * 10)
    assert told[0].token_ids == (await world.say("twin")).token_ids


async def test_followers_of_a_rebuild_that_fails_build_for_themselves(
    worlds: Callable[..., Any],
) -> None:
    world = await worlds(slots=8, config={"step_tokens": 4})
    await world.create("a", STORY)
    await world.say("a", " and", max_tokens=5)
    children = await world.visor.fork(Fork(actor="a", count=3, at=20, seeds=(7,) * 3))
    step, calls = world.guest.step, []

    def breaks_once(plan: Any) -> Any:
        calls.append(plan)
        if len(calls) == 2:
            raise RuntimeError("device lost")
        return step(plan)

    world.guest.step = breaks_once
    told = await asyncio.gather(
        *(world.say(view.record.name) for view in children), return_exceptions=True
    )
    good = [view for view in told if not isinstance(view, BaseException)]
    assert len(good) == 2
    world.guest.step = step
    again = await world.say(children[0].record.name)
    assert {view.token_ids for view in good} == {again.token_ids}


async def test_a_fork_never_writes_its_parents_bytes(world: Any) -> None:
    await twins(world, "a", "twin")
    (child,) = await world.visor.fork(Fork(actor="a"))
    await world.say(child.record.name, " and then", max_tokens=30)
    assert (await world.say("a")).token_ids == (await world.say("twin")).token_ids


async def test_a_fork_whose_parent_is_deleted_wakes_at_its_own_place(world: Any) -> None:
    await twins(world, "a", "twin")
    (child,) = await world.visor.fork(Fork(actor="a", seeds=(7,)))
    await world.visor.delete(DeleteActor(actor="a"))
    await world.create("c", "something else entirely")
    assert (await world.say(child.record.name)).token_ids == (await world.say("twin")).token_ids


async def test_a_deleted_actor_is_gone_and_its_slot_is_free(world: Any) -> None:
    await twins(world, "a")
    free = world.visor.stats()["slots_free"]
    await world.visor.delete(DeleteActor(actor="a"))
    assert world.visor.stats()["slots_free"] == free + 1
    with pytest.raises(ActorNotFound):
        await world.visor.actor("a")
    await world.create("a", "new")
    assert (await world.visor.transcript("a")).text == "new"


async def test_delete_cancels_what_runs_first(world: Any) -> None:
    await twins(world, "a")
    stream = await world.visor.generate(Generate(actor="a", max_tokens=5000, ignore_eos=True))
    await world.visor.delete(DeleteActor(actor="a"))
    assert (await stream.result()).finish == "cancelled"


async def test_evict_moves_the_oldest_and_lists_who_stays(world: Any) -> None:
    for name in ("a", "b", "c"):
        world.clock.seconds += 10
        await world.create(name, STORY)
    await world.visor.update(UpdateActor(actor="c", pinned=True))
    down = Evict(source=Tier.GPU, target=Tier.NVME, count=1)
    dry = await world.visor.evict(Evict(source=Tier.GPU, target=Tier.NVME, count=1, dry_run=True))
    assert await tier_of(world, "a") is Tier.GPU
    done = await world.visor.evict(down)
    assert dry == done
    assert (done.moved, done.skipped) == (("a",), ("c",))
    assert await tier_of(world, "a") is Tier.NVME
    old = await world.visor.evict(Evict(source=Tier.GPU, target=Tier.HOST, older_than_s=5))
    assert old.moved == ("b",)
    with pytest.raises(InvalidRequest):
        await world.visor.evict(Evict(source=Tier.NVME, target=Tier.GPU))


async def test_damaged_frames_are_replayed_and_never_served(world: Any) -> None:
    await twins(world, "a", "twin")
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.HOST))
    frames = world.visor._batchers["toy"].residency.frames
    frames._row(frames._held[(await world.visor.actor("a")).record.id].index)[3] ^= 1
    assert (await world.say("a")).token_ids == (await world.say("twin")).token_ids
    assert world.meter.counts["image_checksum_failures_total"] == 1


async def test_a_crash_loses_nothing_that_was_told(world: Any) -> None:
    await twins(world, "a", "b", "twin")
    first = await world.say("a", " in a", max_tokens=20)
    await world.visor.hibernate(Hibernate(actor="b", tier=Tier.HOST))
    await world.crash()
    assert await tier_of(world, "a") is Tier.NVME
    whole = await world.say("twin", " in a", max_tokens=40)
    assert first.token_ids + (await world.say("a", max_tokens=20)).token_ids == whole.token_ids
    assert (await world.say("b", " in a", max_tokens=40)).token_ids == whole.token_ids


async def test_a_turn_broken_by_a_crash_is_cancelled_and_goes_on_identically(world: Any) -> None:
    await twins(world, "a", "twin")
    stream = await world.visor.generate(Generate(actor="a", max_tokens=5000, ignore_eos=True))
    told = []
    async for event in stream:
        told.append(event.token)
        if len(told) == 10:
            break
    await world.crash()
    view = await world.visor.transcript("a", len(STORY) + 1)
    assert list(view.token_ids[:10]) == told
    rest = await world.visor.generate(Generate(actor="a", max_tokens=10, ignore_eos=True))
    after = (await rest.result()).token_ids
    count = len(view.token_ids) + 10
    twin = await world.visor.generate(Generate(actor="twin", max_tokens=count, ignore_eos=True))
    assert view.token_ids + after == (await twin.result()).token_ids


async def test_a_replay_on_a_build_that_promises_no_bits_is_drift(
    worlds: Callable[..., Any],
) -> None:
    world = await worlds()
    world.build = "fast:toy-1"
    await world.crash()
    await twins(world, "gap", "clean")
    for name in ("gap", "clean"):
        await world.say(name)
        head = (await world.visor.actor(name)).record.head
        assert not (await world.visor.version(f"{name}@{head}")).drift  # a prompt is no replay
    await world.visor.hibernate(Hibernate(actor="clean", tier=Tier.NVME))
    await world.crash()
    for name, drifts in (("gap", True), ("clean", False)):
        await world.say(name)
        head = (await world.visor.actor(name)).record.head
        assert (await world.visor.version(f"{name}@{head}")).drift == drifts
    # neither is continued by the exact build, but for a state that lies on disk whole
    await world.visor.hibernate(Hibernate(actor="clean", tier=Tier.NVME))
    world.build = "toy-1"
    await world.crash()
    with pytest.raises(IncompatibleImage):
        await world.say("gap")
    assert len((await world.say("clean")).token_ids) == 12


async def test_replay_under_another_build_is_refused_unless_asked_for(
    worlds: Callable[..., Any],
) -> None:
    world = await worlds()
    await twins(world, "gap", "clean")
    await world.visor.hibernate(Hibernate(actor="clean", tier=Tier.NVME))
    world.build = "toy-2"
    await world.crash()
    with pytest.raises(IncompatibleImage):
        await world.say("gap")
    assert len((await world.say("clean")).token_ids) == 12  # no gap: its image loads
    world.config["accept_drift"] = True
    await world.crash()
    await world.say("gap")
    head = (await world.visor.actor("gap")).record.head
    assert (await world.visor.version(f"gap@{head}")).drift
    (child,) = await world.visor.fork(Fork(actor="gap"))
    assert (await world.visor.version(f"{child.record.name}@0")).drift
    assert not (await world.visor.version("clean@0")).drift


async def test_drain_leaves_no_gap_for_the_next_build(worlds: Callable[..., Any]) -> None:
    world = await worlds()
    await twins(world, "a", "b")
    await world.visor.hibernate(Hibernate(actor="b", tier=Tier.HOST))
    await world.say("a")
    drained = await world.visor.drain()
    assert (drained.hibernated, drained.failed) == (2, ())
    world.build = "toy-2"
    await world.crash()
    for name in ("a", "b"):
        assert len((await world.say(name)).token_ids) == 12


async def test_drain_also_writes_what_only_the_journal_holds(worlds: Callable[..., Any]) -> None:
    world = await worlds()
    await twins(world, "a", "forked")
    await world.visor.fork(Fork(actor="forked", names=("child",), at=9))
    await world.crash()  # everything is in the journal alone now
    drained = await world.visor.drain()
    assert (drained.hibernated, drained.images, drained.failed) == (0, 3, ())
    world.build = "toy-2"
    await world.crash()
    for name in ("a", "forked", "child"):
        assert len((await world.say(name)).token_ids) == 12


async def test_an_actor_with_a_ttl_is_hibernated_once_it_is_idle_for_that_long(
    world: Any,
) -> None:
    await twins(world, "a", "b")
    await world.visor.update(UpdateActor(actor="a", ttl_s=60))
    assert await world.visor._idle.sweep() == 0
    world.clock.seconds += 61
    assert await world.visor._idle.sweep() == 1
    assert await tier_of(world, "a") is Tier.NVME
    assert await tier_of(world, "b") is Tier.GPU


async def test_a_clean_image_is_not_written_twice(world: Any) -> None:
    await twins(world, "a")
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.NVME))
    used = world.images.used_bytes
    await world.visor.resume(Resume(actor="a"))
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.NVME))
    children = await world.visor.fork(Fork(actor="a", count=5))
    for child in children:
        await world.visor.resume(Resume(actor=child.record.name))
        await world.visor.hibernate(Hibernate(actor=child.record.name, tier=Tier.NVME))
    assert world.images.used_bytes == used


async def test_a_state_found_not_finite_on_its_way_out_is_in_nobodys_way(
    worlds: Callable[..., Any],
) -> None:
    world = await worlds(slots=2, config={"step_tokens": 2})
    for name in "ab":
        await world.create(name)
        stream = await world.visor.generate(Generate(actor=name, prompt=(1, 2, 3, 4, POISON, 5)))
        stream.cancel()
        assert (await stream.result()).finish is FinishReason.CANCELLED
    await world.create("c")
    assert (await world.visor.actor("c")).status == "idle"
    view = await world.visor.evict(Evict(source=Tier.GPU, target=Tier.NVME))
    assert (view.moved, view.skipped) == (("c",), ("b",))
    for name in "ab":
        assert (await world.visor.actor(name)).status == "quarantined"
