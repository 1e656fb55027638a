"""Room is made ahead of need and off the disk; what cannot be kept stays, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from statevisor.hypervisor import evictions
from statevisor.hypervisor.commands import (
    CreateActor,
    Evict,
    Fork,
    Gc,
    Generate,
    Hibernate,
    Resume,
    UpdateActor,
)
from statevisor.hypervisor.errors import NoFreeSlot, QuotaExceeded
from statevisor.hypervisor.vocab import Tier
from statevisor.store.memory_images import MemoryImages

STORY = "once upon a time there was a fox"
IMAGE_BYTES = 8192  # of a toy state in the twin's count


class SlowDisk(MemoryImages):
    """Writes and reads wait for a gate, and are counted."""

    def __init__(self, capacity_bytes: int = 1 << 40) -> None:
        super().__init__(capacity_bytes)
        self.gate = asyncio.Event()
        self.gate.set()
        self.puts = self.gets = 0

    async def put(self, row: memoryview, meta: Any, filled: Any = None) -> Any:
        self.puts += 1
        await self.gate.wait()
        return await super().put(row, meta, filled)

    async def get(self, ref: Any, out: memoryview, reached: Any = None) -> Any:
        self.gets += 1
        await self.gate.wait()
        return await super().get(ref, out, reached)


async def tier_of(world: Any, name: str) -> Tier:
    return (await world.visor.actor(name)).tier


async def tiers(world: Any, names: list[str]) -> list[Tier]:
    return [await tier_of(world, name) for name in names]


async def until(condition: Callable[[], bool]) -> None:
    """Let the background go on until something has happened."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never happened")


def residency(world: Any) -> Any:
    return world.visor._batchers["toy"].residency


async def crowd(world: Any, count: int) -> list[str]:
    names = [f"a{index}" for index in range(count)]
    for name in names:
        world.clock.seconds += 1
        await world.create(name, STORY)
    return names


# -- the watermarks --------------------------------------------------------------------------------
async def test_a_host_tier_above_its_high_mark_is_brought_down_to_the_low_one(
    worlds: Callable[..., Any],
) -> None:
    world = await worlds(slots=2, frames=20, config={"host_high": 0.9, "host_low": 0.5})
    frames = residency(world).frames
    names = await crowd(world, 20)  # 2 in slots, 18 in frames: not above
    await asyncio.sleep(0)
    assert frames.used == 18
    names += ["one-more"]
    await world.create("one-more", STORY)
    await until(lambda: frames.used <= 10)
    await until(lambda: not residency(world).evictions._leaving)
    assert frames.used == 10
    assert await tiers(world, names) == [Tier.NVME] * 9 + [Tier.HOST] * 10 + [Tier.GPU] * 2
    twin = await world.say(names[3])
    await world.create("twin", STORY)
    assert twin.token_ids == (await world.say("twin")).token_ids


async def test_pinned_actors_and_those_at_work_are_not_spilled(worlds: Callable[..., Any]) -> None:
    world = await worlds(slots=8, frames=20, config={"host_high": 1.0, "host_low": 0.0})
    names = await crowd(world, 5)
    for name in names:
        await world.visor.hibernate(Hibernate(actor=name, tier=Tier.HOST))
    await world.visor.update(UpdateActor(actor="a0", pinned=True))
    busy = (await world.visor._roster.find("a1")).mailbox
    assert busy.try_enter()
    assert await residency(world).evictions.spill() == 3
    busy.leave()
    assert await tiers(world, names) == [Tier.HOST] * 2 + [Tier.NVME] * 3


async def test_a_state_whose_image_is_there_leaves_without_a_write_or_a_copy(
    worlds: Callable[..., Any],
) -> None:
    world = await worlds(slots=2, images=SlowDisk())
    await world.create("a", STORY)
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.NVME))
    await world.visor.resume(Resume(actor="a"))
    puts, saves, save = world.images.puts, [], world.guest.save
    world.guest.save = lambda slot, *out: (saves.append(slot), save(slot, *out))
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.NVME))
    assert (world.images.puts, saves) == (puts, [])
    await world.visor.resume(Resume(actor="a"))
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.HOST))
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.NVME))
    assert (world.images.puts, len(saves)) == (puts, 1)
    await world.say("a")  # it moves on: its image is that of another place now
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.NVME))
    assert (world.images.puts, len(saves)) == (puts + 1, 2)


# -- slots never wait for the disk -----------------------------------------------------------------
async def stuck_disk(worlds: Callable[..., Any]) -> Any:
    """One slot, no frames, and a disk that does not answer."""
    world = await worlds(slots=1, frames=0, images=SlowDisk(), config={"slot_wait_s": 5.0})
    await world.create("a", STORY)
    world.images.gate.clear()
    return world


async def test_a_slot_is_given_on_before_the_disk_has_what_was_in_it(
    worlds: Callable[..., Any],
) -> None:
    world = await stuck_disk(worlds)
    await world.create("b", STORY)
    told = await world.say("b")
    assert world.images.puts == 1
    world.images.gate.set()
    await until(lambda: not residency(world).evictions._leaving)
    assert (await world.say("a")).token_ids == told.token_ids


async def test_waiting_for_the_whole_move_would_wait_for_the_disk(
    worlds: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without the early hand-over the same story stands still."""

    async def to_the_end(self: Any, actor: Any, tier: Any) -> bool:
        return await self._begin(actor, tier)

    monkeypatch.setattr(evictions.Evictions, "_send", to_the_end)
    world = await stuck_disk(worlds)
    waiting = asyncio.create_task(world.create("b", STORY))
    for _ in range(2000):
        await asyncio.sleep(0)
    assert residency(world).actors == {}
    assert (await world.visor.actor("b")).tier is Tier.NVME
    world.images.gate.set()
    await waiting


# -- prefetch --------------------------------------------------------------------------------------
async def queued(worlds: Callable[..., Any]) -> Any:
    """`waits` is on the disk and wants the only slot, in which `runs` generates."""
    world = await worlds(slots=1, frames=4, images=SlowDisk(), config={"slot_wait_s": 5.0})
    await world.create("waits", STORY)
    await world.visor.hibernate(Hibernate(actor="waits", tier=Tier.NVME))
    await world.create("runs", STORY)
    world.running = await world.visor.generate(
        Generate(actor="runs", max_tokens=5000, ignore_eos=True)
    )
    world.waiting = asyncio.create_task(world.say("waits"))
    return world


async def test_who_waits_for_a_slot_has_its_state_read_meanwhile(
    worlds: Callable[..., Any],
) -> None:
    world = await queued(worlds)
    await until(lambda: residency(world).frames.oldest() != ())
    assert (await world.visor.actor("runs")).status == "running"
    assert world.images.gets == 1
    world.images.gate.clear()  # the disk is not asked again
    world.running.cancel()
    await world.running.result()
    told = await world.waiting
    world.images.gate.set()
    await world.create("twin", STORY)
    assert told.token_ids == (await world.say("twin")).token_ids


async def test_without_prefetch_the_disk_is_asked_once_there_is_a_slot(
    worlds: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""

    async def nothing(self: Any, actor: Any) -> bool:
        return False

    monkeypatch.setattr("statevisor.hypervisor.prefetch.Prefetch.fetch", nothing)
    world = await queued(worlds)
    for _ in range(500):
        await asyncio.sleep(0)
    assert world.images.gets == 0
    world.running.cancel()
    await world.running.result()
    await world.waiting
    assert world.images.gets == 1


async def test_what_was_fetched_in_vain_is_a_cache_that_costs_nothing_to_drop(
    worlds: Callable[..., Any],
) -> None:
    world = await worlds(slots=1, frames=4, images=SlowDisk(), config={"slot_wait_s": 0.05})
    await world.create("waits", STORY)
    await world.visor.hibernate(Hibernate(actor="waits", tier=Tier.NVME))
    await world.create("pinned", STORY)
    await world.visor.update(UpdateActor(actor="pinned", pinned=True))
    with pytest.raises(NoFreeSlot):
        await world.visor.resume(Resume(actor="waits"))
    assert await tier_of(world, "waits") is Tier.HOST
    puts = world.images.puts
    await world.visor.hibernate(Hibernate(actor="waits", tier=Tier.NVME))
    assert (residency(world).frames.used, world.images.puts) == (0, puts)
    await world.visor.update(UpdateActor(actor="pinned", pinned=False))
    await world.create("twin", STORY)
    assert (await world.say("waits")).token_ids == (await world.say("twin")).token_ids


async def test_a_damaged_image_is_not_served_from_a_frame_either(
    worlds: Callable[..., Any],
) -> None:
    world = await worlds(slots=1, frames=4)
    await world.create("waits", STORY)
    await world.visor.hibernate(Hibernate(actor="waits", tier=Tier.NVME))
    for file in world.images.files.values():
        file[-1] ^= 1
    await world.create("other", STORY)
    told = await world.say("waits")
    assert told.token_ids == (await world.say("other")).token_ids  # made again, from the journal
    assert world.meter.counts["image_checksum_failures_total"] >= 1


# -- everything is full ----------------------------------------------------------------------------
async def test_a_full_disk_refuses_a_hibernation_and_the_actor_goes_on_where_it_is(
    worlds: Callable[..., Any],
) -> None:
    world = await worlds(slots=4, images=MemoryImages(IMAGE_BYTES))
    for name in ("a", "b", "twin"):
        await world.create(name, STORY)
    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.NVME))
    with pytest.raises(QuotaExceeded) as refused:
        await world.visor.hibernate(Hibernate(actor="b", tier=Tier.NVME))
    assert "gc" in (refused.value.hint or "")
    view = await world.visor.actor("b")
    assert (view.status, view.tier) == ("idle", Tier.GPU)
    assert (await world.say("b")).token_ids == (await world.say("twin")).token_ids
    await world.visor.hibernate(Hibernate(actor="b", tier=Tier.HOST))
    with pytest.raises(QuotaExceeded):
        await world.visor.hibernate(Hibernate(actor="b", tier=Tier.NVME))
    assert await tier_of(world, "b") is Tier.HOST
    world.images.capacity_bytes *= 4
    await world.visor.hibernate(Hibernate(actor="b", tier=Tier.NVME))


async def test_an_eviction_by_hand_ends_where_the_disk_does(worlds: Callable[..., Any]) -> None:
    world = await worlds(slots=4, images=MemoryImages(2 * IMAGE_BYTES))
    for index in range(3):  # three states: equal ones would share an image
        await world.create(f"a{index}", STORY[index:])
    down = Evict(source=Tier.GPU, target=Tier.NVME)
    view = await world.visor.evict(down)
    assert (view.moved, view.skipped) == (("a0", "a1"), ("a2",))
    with pytest.raises(QuotaExceeded):
        await world.visor.evict(down)
    assert await tier_of(world, "a2") is Tier.GPU


async def all_full(worlds: Callable[..., Any], wait_s: float) -> Any:
    """One slot, one frame and room for one image, and three actors that fill them."""
    world = await worlds(
        slots=1, frames=1, images=MemoryImages(IMAGE_BYTES), config={"slot_wait_s": wait_s}
    )
    for name in ("disk", "host", "slot"):
        await world.create(name, STORY)
        if name == "disk":
            await world.visor.hibernate(Hibernate(actor="disk", tier=Tier.NVME))
    assert await tiers(world, ["disk", "host", "slot"]) == [Tier.NVME, Tier.HOST, Tier.GPU]
    return world


async def test_with_every_tier_full_a_request_is_refused_and_nothing_is_lost(
    worlds: Callable[..., Any],
) -> None:
    world = await all_full(worlds, 0.1)
    view = await world.visor.create(CreateActor(name="late", prompt=STORY, seed=7))
    assert (view.status, view.tier) == ("hibernated", Tier.NVME)  # journalled, absorbed later
    for name in ("disk", "host", "late"):
        with pytest.raises(NoFreeSlot):
            await world.say(name)
    told = await world.say("slot")  # whoever is in goes on
    await world.visor.fork(Fork(actor="slot", names=("child",)))
    world.images.capacity_bytes = 1 << 20
    for name in ("disk", "host", "late"):
        assert (await world.say(name)).token_ids == told.token_ids
    world.check()


async def test_who_waits_is_served_once_there_is_room(worlds: Callable[..., Any]) -> None:
    world = await all_full(worlds, 20.0)
    waiting = asyncio.create_task(world.say("disk"))
    for _ in range(200):
        await asyncio.sleep(0)
    assert not waiting.done()
    await world.visor.gc(Gc(grace_s=0))  # nothing to be had from it
    world.images.capacity_bytes = 1 << 20
    assert len((await waiting).token_ids) == 12
