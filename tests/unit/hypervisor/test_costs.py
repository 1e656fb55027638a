"""What a dry run tells of a journey back is what the journey then costs."""

from __future__ import annotations

from typing import Any

import pytest

from statevisor.hypervisor import retention
from statevisor.hypervisor.collector import Collector
from statevisor.hypervisor.commands import (
    Append,
    CreateActor,
    Fork,
    Gc,
    Generate,
    Hibernate,
    ImportImage,
    Mutate,
    Resume,
    Rollback,
    Snapshot,
)
from statevisor.hypervisor.errors import GenerationConflict, InvalidRequest, VersionNotFound
from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.vocab import Bound, Source, Tier
from statevisor.store.memory import MemoryCatalog

STORY = "once upon a time there was a dragon, "


async def paid(world: Any, name: str) -> float:
    """Tokens that are replayed as an actor wakes."""
    before = world.meter.counts.get("replayed_tokens_total", 0)
    await world.visor.resume(Resume(actor=name))
    return float(world.meter.counts.get("replayed_tokens_total", 0) - before)


async def grow(world: Any, name: str, turns: int, tokens: int = 20) -> None:
    """A history with an image after every turn that is worth one."""
    for _ in range(turns):
        world.clock.seconds += 1  # the disk has time for an image
        await world.say(name, max_tokens=tokens)
        await world.visor._tasks.wait()


async def everything(world: Any) -> Any:
    """All that an operation could change."""
    records, _ = await world.visor.actors()
    versions = [await world.visor.versions(view.record.id, limit=10_000) for view in records]
    images = await world.catalog.live_images()
    slots = dict(world.visor._batchers["toy"].residency.actors)
    return records, versions, images, slots, dict(world.meter.counts)


async def test_a_rollback_costs_what_it_was_said_to(worlds: Any) -> None:
    # who is evicted meanwhile leaves an image nearer by: so nobody is
    world = await worlds(config={"checkpoint_tokens": 16}, slots=64)
    await world.create("a", STORY)
    await grow(world, "a", 6)
    end = (await world.visor.actor("a")).record.position
    told = []
    for to in range(0, end + 1, 7):
        (child,) = await world.visor.fork(Fork(actor="a", names=(f"c{to}",)))
        await world.visor.hibernate(Hibernate(actor="a"))
        view = await world.visor.cost(Rollback(actor=child.record.name, to=to))
        await world.visor.rollback(Rollback(actor=child.record.name, to=to))
        assert view.tokens == await paid(world, child.record.name), view
        assert view.position == to
        assert view.tokens <= view.bound_tokens
        assert view.source is (Source.EMPTY if view.image is None else Source.IMAGE)
        told.append(view.tokens)
    # the checkpoints bound it, and it is not always nothing
    assert 0 < max(told) <= 16 + 20
    assert len({*told}) > 5


async def test_without_checkpoints_it_says_how_long_the_way_is(world: Any) -> None:
    await world.create("a", STORY)
    await grow(world, "a", 3)

    view = await world.visor.cost(Rollback(actor="a", to=len(STORY) + 30))

    assert (view.source, view.source_position, view.image) == (Source.EMPTY, 0, None)
    assert view.tokens == len(STORY) + 29
    await world.visor.rollback(Rollback(actor="a", to=len(STORY) + 30))
    assert await paid(world, "a") == view.tokens


async def test_a_fork_where_its_parent_rests_costs_a_copy(world: Any) -> None:
    await world.create("a", STORY)
    await grow(world, "a", 1)
    here = await world.visor.cost(Fork(actor="a"))
    assert (here.source, here.tokens, here.replay_s) == (Source.SLOT, 0, 0.0)

    await world.visor.hibernate(Hibernate(actor="a", tier=Tier.HOST))

    there = await world.visor.cost(Fork(actor="a"))
    assert (there.source, there.tokens) == (Source.EMPTY, len(STORY) + 20)
    (child,) = await world.visor.fork(Fork(actor="a"))
    assert await paid(world, child.record.name) == there.tokens


async def test_a_rollback_does_not_count_on_the_slot_that_it_gives_back(world: Any) -> None:
    await world.create("a", STORY)
    await grow(world, "a", 1)
    head = (await world.visor.actor("a")).record.position

    view = await world.visor.cost(Rollback(actor="a", to=head))

    assert view.tokens == len(STORY) + 20
    await world.visor.rollback(Rollback(actor="a", to=head))
    assert await paid(world, "a") == view.tokens


async def test_a_mutation_is_where_replays_begin(world: Any) -> None:
    await world.create("a", STORY)
    await grow(world, "a", 1)
    rule = Mutation(rule="decay", params={"alpha": 0.5})
    made = await world.visor.mutate(Mutate(actor="a", mutation=rule))
    await grow(world, "a", 2)
    end = (await world.visor.actor("a")).record.position

    after = await world.visor.cost(Rollback(actor="a", to=end - 3))
    at = await world.visor.cost(Rollback(actor="a", to=made.handle))
    before = await world.visor.cost(Rollback(actor="a", to=made.position - 1))

    assert (after.source_position, after.tokens) == (made.position, end - 3 - made.position)
    assert (at.source, at.tokens, at.bound_tokens) == (Source.IMAGE, 0, 0)
    assert (before.source, before.tokens) == (Source.EMPTY, made.position - 2)
    await world.visor.rollback(Rollback(actor="a", to=end - 3))
    assert await paid(world, "a") == after.tokens


async def test_an_import_with_several_tokens_pending_is_counted_as_it_is(world: Any) -> None:
    row = bytearray(world.guest.layout.row_bytes)
    meta = ImageMeta(
        layout=world.guest.layout,
        fingerprints=world.guest.fingerprints,
        position=50,
        absorbed=40,
        pending=tuple(range(97, 107)),
    )
    file = await world.images.export(await world.images.put(memoryview(row), meta))
    await world.visor.import_image(ImportImage(name="a", file=file))
    await world.visor.append(Append(actor="a", prompt="and more"))

    for to in (50, 55, 57):
        (child,) = await world.visor.fork(Fork(actor="a", at=to))
        view = await world.visor.cost(Rollback(actor=child.record.name, to=to))
        assert view.tokens == to - 1 - 40
        assert view.bound_tokens >= view.tokens
        assert await paid(world, child.record.name) == view.tokens


async def test_it_changes_nothing_and_waits_for_nobody(world: Any) -> None:
    await world.create("a", STORY)
    await grow(world, "a", 2)
    await world.visor.snapshot(Snapshot(actor="a", tag="here"))
    before = await everything(world)
    for at in (0, 1, 20, "a@0", "here", None):
        await world.visor.cost(Fork(actor="a", count=8, at=at))
        if at is not None:
            await world.visor.cost(Rollback(actor="a", to=at))
    assert await everything(world) == before

    stream = await world.visor.generate(Generate(actor="a", max_tokens=3000, ignore_eos=True))
    await world.visor.cost(Rollback(actor="a", to=5))
    assert world.visor._roster.actors[before[0][0].record.id].turn is not None
    stream.cancel()
    await stream.result()


async def test_it_refuses_what_the_journey_would_refuse(world: Any) -> None:
    await world.create("a", STORY)
    await world.create("b", "another")
    for change in (Rollback(actor="a", to=1000), Rollback(actor="a", to="b@0")):
        with pytest.raises(InvalidRequest):
            await world.visor.cost(change)
    with pytest.raises(VersionNotFound):
        await world.visor.cost(Fork(actor="a", at="a@9"))
    with pytest.raises(GenerationConflict):
        await world.visor.cost(Rollback(actor="a", to=0, if_generation=99))


async def test_time_is_told_once_a_speed_is_known(world: Any) -> None:
    await world.create("a", STORY)
    await grow(world, "a", 2)
    policy = world.visor._batchers["toy"].residency.states.checkpoints
    assert (await world.visor.cost(Rollback(actor="a", to=21))).replay_s is None

    policy.replayed(1000, 0.5)

    assert (await world.visor.cost(Rollback(actor="a", to=21))).replay_s == pytest.approx(0.01)
    assert (await world.visor.cost(Rollback(actor="a", to=0))).replay_s == 0.0


async def test_the_bound_holds_after_collections(
    worlds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told before images are taken out, kept after it; near the end the distance alone holds."""
    monkeypatch.setattr(retention, "DENSE", 32)
    catalog = MemoryCatalog(now_us=lambda: 0)  # older than any grace
    world = await worlds(config={"checkpoint_tokens": 8}, catalog=catalog)
    await world.visor.create(CreateActor(name="a", prompt=STORY, seed=1))
    await grow(world, "a", 60, tokens=8)
    end = (await world.visor.actor("a")).record.position
    places = range(1, end, 7)
    before = {at: await world.visor.cost(Rollback(actor="a", to=at)) for at in places}
    collector = Collector(
        catalog=world.catalog,
        images=world.images,
        prints={"toy": world.guest.fingerprints},
        clock=world.clock,
        dense=32,
    )
    view = await collector.run(Gc(grace_s=0))
    assert sum(line.images for line in view.removed) > 20

    after = {at: await world.visor.cost(Rollback(actor="a", to=at)) for at in places}

    assert all(after[at].tokens <= before[at].bound_tokens for at in places)
    assert {before[at].bound for at in places} == {Bound.DENSE, Bound.SPARSE}
    near = [at for at in places if before[at].bound is Bound.DENSE]
    assert near == [at for at in places if at >= near[0]]
    assert max(before[at].bound_tokens for at in near) <= 16
    # were the near rule told for the far places too, it would be a lie
    assert max(after[at].tokens for at in places) > 16
