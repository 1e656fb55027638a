"""gc takes what nothing needs, tells what it takes, and never what somebody is about to use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from statevisor.hypervisor.collector import Collector
from statevisor.hypervisor.commands import (
    Append,
    DeleteActor,
    Fork,
    Fsck,
    Gc,
    GcView,
    Hibernate,
    Mutate,
    Snapshot,
    UpdateActor,
)
from statevisor.hypervisor.image_ports import Extent
from statevisor.hypervisor.layout import Fingerprints
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.vocab import Rng, Tier
from statevisor.store.memory import MemoryCatalog

MINUTE = 60.0


@pytest.fixture
async def timed(worlds: Any) -> Any:
    """A world whose catalog reads the world's clock, and whose gc thins early."""
    clock: list[Any] = []
    catalog = MemoryCatalog(now_us=lambda: clock[0].now_us() if clock else 0)
    world = await worlds(catalog=catalog)
    clock.append(world.clock)
    thin_early(world)
    return world


def thin_early(world: Any, dense: int = 8) -> None:
    world.visor._housekeeping._collector._dense = dense


async def gc(world: Any, *, grace_s: float = MINUTE, dry_run: bool = False) -> GcView:
    view: GcView = await world.visor.gc(Gc(grace_s=grace_s, dry_run=dry_run))
    return view


def lines(view: GcView) -> dict[str, int]:
    return {line.reason: line.images for line in view.removed + view.kept}


async def rest(world: Any, name: str) -> None:
    """Write an image where the actor stands."""
    await world.visor.hibernate(Hibernate(actor=name, tier=Tier.NVME))


async def grow(world: Any, name: str, turns: int) -> None:
    for _ in range(turns):
        await world.say(name, max_tokens=4)
        await rest(world, name)


async def free_map_is_the_rows(world: Any) -> bool:
    named = {(ref.slab, ref.offset) for ref in await world.catalog.live_images()}
    return bool(named == {(e.slab, e.offset) for e in world.images.extents()})


async def test_a_living_actor_loses_nothing_it_needs(timed: Any) -> None:
    await timed.create("a", "once upon a time")
    await grow(timed, "a", 12)
    timed.clock.seconds += 2 * MINUTE
    before = (await timed.visor.transcript("a")).token_ids
    head = await timed.visor.version("a@12")

    view = await gc(timed)

    assert view.removed[0].reason == "surplus"
    assert lines(view)["recent"] >= 2
    assert (await timed.visor.version("a@12")).digest == head.digest
    assert (await timed.visor.transcript("a")).token_ids == before
    for seq in range(1, 13):
        assert (await timed.visor.verify(f"a@{seq}")).ok
    timed.images.check()


async def test_tokens_are_the_same_with_and_without_gc(timed: Any) -> None:
    await timed.create("a", "once upon a time")
    await grow(timed, "a", 12)
    await timed.visor.fork(Fork(actor="a", names=("early",), at=25, rng=Rng.INHERIT))
    await timed.visor.fork(Fork(actor="a", names=("late",), at=25, rng=Rng.INHERIT))
    unswept = await timed.say("early", max_tokens=9)
    timed.clock.seconds += 2 * MINUTE
    await gc(timed)
    timed.clock.seconds += 2 * MINUTE
    await gc(timed)

    assert (await timed.say("late", max_tokens=9)).token_ids == unswept.token_ids


async def test_a_dry_run_tells_the_same_and_takes_nothing(timed: Any) -> None:
    await timed.create("a", "once upon a time")
    await grow(timed, "a", 12)
    await timed.create("gone")
    await grow(timed, "gone", 2)
    await timed.visor.delete(DeleteActor(actor="gone"))
    timed.clock.seconds += 2 * MINUTE
    used, rows = timed.images.used_bytes, await timed.catalog.live_images()

    told = await gc(timed, dry_run=True)
    assert (timed.images.used_bytes, await timed.catalog.live_images()) == (used, rows)
    done = await gc(timed)

    assert told == replace(done, dry_run=True)
    assert (done.actors, done.versions) == (1, 3)
    assert done.waiting_images == sum(line.images for line in done.removed)
    assert done.waiting_bytes == sum(line.nbytes for line in done.removed)


async def test_bytes_go_a_grace_after_their_rows(timed: Any) -> None:
    await timed.create("a")
    await grow(timed, "a", 2)
    await timed.visor.delete(DeleteActor(actor="a"))
    used = timed.images.used_bytes

    first = await gc(timed)
    assert (first.actors, first.freed_images, timed.images.used_bytes) == (1, 0, used)
    timed.clock.seconds += MINUTE / 2
    assert (await gc(timed)).freed_images == 0
    timed.clock.seconds += MINUTE
    last = await gc(timed)

    assert (last.freed_images, last.freed_bytes, last.waiting_images) == (2, used, 0)
    assert timed.images.used_bytes == 0
    assert await free_map_is_the_rows(timed)


async def test_ancestors_of_the_living_stay(timed: Any) -> None:
    await timed.create("a", "once upon a time")
    await grow(timed, "a", 3)
    await timed.visor.fork(Fork(actor="a", names=("child",)))
    await timed.visor.delete(DeleteActor(actor="a"))
    timed.clock.seconds += 2 * MINUTE

    assert (await gc(timed)).actors == 0
    assert (await timed.visor.verify("child@0")).ok
    await timed.visor.delete(DeleteActor(actor="child"))
    assert (await gc(timed)).actors == 2


async def test_roots_names_pins_and_bases_stay(timed: Any) -> None:
    await timed.create("a", "once upon a time")
    await grow(timed, "a", 2)
    await timed.visor.snapshot(Snapshot(actor="a", tag="best"))
    await grow(timed, "a", 3)
    forked = (await timed.visor.actor("a")).record.position
    await grow(timed, "a", 1)
    await timed.visor.fork(Fork(actor="a", names=("child",), at=forked))
    await grow(timed, "a", 9)
    await timed.visor.mutate(Mutate(actor="a", mutation=Mutation(rule="zero", params={})))
    await timed.create("pinned")
    await grow(timed, "pinned", 9)
    await timed.visor.update(UpdateActor(actor="pinned", pinned=True))
    timed.clock.seconds += 2 * MINUTE

    view = await gc(timed)

    found = lines(view)
    assert found["rooted"] == found["named"] == found["base"] == 1
    assert found["pinned"] == 9
    assert (await timed.visor.version("best")).digest is not None
    assert found["surplus"] > 0


async def test_what_is_young_stays(timed: Any) -> None:
    await timed.create("a")
    await grow(timed, "a", 12)

    assert "surplus" not in lines(await gc(timed))
    assert lines(await gc(timed))["young"] == 12


async def test_images_of_a_build_that_promises_no_bits_are_no_cache(timed: Any) -> None:
    timed.build = "fast:toy-1"
    await timed.crash()
    await timed.create("a")
    await grow(timed, "a", 12)
    timed.clock.seconds += 2 * MINUTE
    thin_early(timed)

    assert lines(await gc(timed)) == {"build": 12}


async def test_images_of_another_build_are_no_cache(timed: Any) -> None:
    await timed.create("a")
    await grow(timed, "a", 12)
    timed.clock.seconds += 2 * MINUTE
    timed.build = "toy-2"
    await timed.crash()
    thin_early(timed)

    view = await gc(timed)

    assert lines(view) == {"build": 12}


async def test_an_image_being_written_survives(timed: Any) -> None:
    meta, row = written(timed)
    image = await timed.images.put(memoryview(row), meta)

    for _ in range(2):
        assert "unnamed" not in lines(await gc(timed))
    record = await named(timed)
    await timed.catalog.add_image(record.segment, record.position, image)
    timed.clock.seconds += 2 * MINUTE
    await gc(timed)

    assert (await timed.images.verify(image)) == meta


async def test_without_the_grace_an_image_being_written_is_lost(timed: Any) -> None:
    """The control: what the grace is for."""
    meta, row = written(timed)
    image = await timed.images.put(memoryview(row), meta)

    assert lines(await gc(timed, grace_s=0))["unnamed"] == 1
    record = await named(timed)
    await timed.catalog.add_image(record.segment, record.position, image)

    view = await timed.visor.fsck(Fsck())
    assert [one.kind for one in view.findings] == ["image_damaged"]


async def test_an_image_that_nobody_named_is_given_back(timed: Any) -> None:
    meta, row = written(timed)
    await timed.images.put(memoryview(row), meta)
    await gc(timed)
    timed.clock.seconds += 2 * MINUTE

    told = await gc(timed, dry_run=True)
    assert lines(told)["unnamed"] == 1
    assert lines(await gc(timed))["unnamed"] == 1
    assert timed.images.used_bytes == 0
    assert await free_map_is_the_rows(timed)


async def test_a_place_written_anew_has_its_own_grace(timed: Any, monkeypatch: Any) -> None:
    """As if the first had been given back and a second were being written at its place."""
    meta, row = written(timed)
    image = await timed.images.put(memoryview(row), meta)
    await gc(timed)
    timed.clock.seconds += 2 * MINUTE
    born = timed.images.birth(Extent(image.slab, image.offset, image.length))
    monkeypatch.setattr(timed.images, "birth", lambda extent: born + 1)

    assert "unnamed" not in lines(await gc(timed))
    timed.clock.seconds += 2 * MINUTE
    assert lines(await gc(timed))["unnamed"] == 1


async def test_a_shared_image_is_judged_by_all_its_places(timed: Any) -> None:
    for name in ("a", "b"):
        await timed.create(name, "the same words", seed=5)
    await grow(timed, "a", 12)
    await grow(timed, "b", 3)
    timed.clock.seconds += 2 * MINUTE
    shared = {(await timed.visor.version(f"b@{seq}")).digest for seq in (1, 2, 3)}
    assert shared == {(await timed.visor.version(f"a@{seq}")).digest for seq in (1, 2, 3)}

    await gc(timed)
    timed.clock.seconds += 2 * MINUTE
    await gc(timed)

    assert (await timed.visor.version("b@3")).digest in shared
    for ref in await timed.catalog.live_images():
        await timed.images.verify(ref)


async def test_gc_knows_only_loaded_guests(timed: Any) -> None:
    await timed.create("a")
    await grow(timed, "a", 12)
    timed.clock.seconds += 2 * MINUTE
    prints: dict[str, Fingerprints] = {}
    alone = Collector(
        catalog=timed.catalog, images=timed.images, prints=prints, clock=timed.clock, dense=8
    )

    assert {line.reason for line in (await alone.run(Gc(grace_s=1))).kept} == {"build"}


def written(world: Any) -> tuple[Any, bytearray]:
    """An image that is not named yet."""
    (batcher,) = world.visor._batchers.values()
    meta = batcher.residency.states.meta(3, 2, (7,))
    return meta, bytearray(batcher.guest.layout.row_bytes)


async def named(world: Any) -> Any:
    """An actor of three tokens to name it for."""
    await world.create("late", None)
    await world.visor.append(Append(actor="late", prompt=(1, 2, 3)))
    return (await world.visor.actor("late")).record
