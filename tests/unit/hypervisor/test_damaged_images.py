"""A damaged image is not served: its state is made again, or its actor alone is quarantined."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from statevisor.hypervisor.commands import (
    Fork,
    Fsck,
    Hibernate,
    Mutate,
    Resume,
    Rollback,
    Snapshot,
)
from statevisor.hypervisor.errors import ActorQuarantined, ImageCorrupt
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.states import States
from statevisor.hypervisor.vocab import Rng, Tier
from statevisor.store.memory_images import MemoryImages


class Eager(MemoryImages):
    """Tells what it has read before it finds it damaged."""

    async def get(self, ref: Any, out: memoryview, reached: Any = None) -> Any:
        assert reached is not None
        out[:] = b"?" * len(out)
        await asyncio.to_thread(reached, len(out) // 2)
        await asyncio.to_thread(reached, len(out))
        try:
            return await super().get(ref, out)
        finally:
            reached(0)


STORY = "once upon a time there was a fox"
HALF = Mutation(rule="decay", params={"alpha": 0.5})


async def lay_down(world: Any, *names: str) -> None:
    for name in names:
        await world.visor.hibernate(Hibernate(actor=name, tier=Tier.NVME))


async def damage(world: Any, name: str) -> Any:
    """Flip a bit of the image that an actor would wake from."""
    record = (await world.visor.actor(name)).record
    _, ref = await world.catalog.nearest_image(record.segment, record.position)
    world.images.files[ref.offset][-1] ^= 1
    return ref


def failures(world: Any) -> float:
    return float(world.meter.counts.get("image_checksum_failures_total", 0))


@pytest.mark.parametrize("older", [True, False], ids=["from an older image", "from the beginning"])
async def test_what_a_replay_can_make_is_made_again(
    world: Any, older: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "twin"):
        await world.create(name, STORY)
    if older:
        await lay_down(world, "a")
    await world.say("a")
    await world.say("twin")
    await lay_down(world, "a")
    ref = await damage(world, "a")

    assert (await world.say("a")).token_ids == (await world.say("twin")).token_ids

    assert failures(world) == 1
    assert "not served, and made again" in caplog.text
    assert (await world.visor.actor("a")).status == "idle"
    assert await world.catalog.image(ref.digest) is None, "it has lost its name"


@pytest.mark.parametrize("older", [True, False], ids=["from an older image", "from the beginning"])
async def test_what_was_loaded_before_it_was_found_damaged_leaves_nothing(
    worlds: Callable[..., Any], older: bool
) -> None:
    world = await worlds(images=Eager())
    for name in ("a", "twin"):
        await world.create(name, STORY)
    if older:
        await lay_down(world, "a")
        await world.visor.resume(Resume(actor="a"))
    await world.say("a")
    await world.say("twin")
    await lay_down(world, "a")
    await damage(world, "a")

    assert (await world.say("a")).token_ids == (await world.say("twin")).token_ids
    assert failures(world) == 1


async def test_its_place_gets_a_whole_image_again(world: Any) -> None:
    """Were the damaged one to keep its name, a move to disk would not write the state."""
    await world.create("a", STORY)
    await lay_down(world, "a")
    ref = await damage(world, "a")
    await world.visor.resume(Resume(actor="a"))
    await lay_down(world, "a")

    found = await world.catalog.image(ref.digest)
    assert found is not None
    assert found.offset != ref.offset
    assert (await world.visor.fsck(Fsck())).ok
    await world.create("twin", STORY)
    assert (await world.say("a")).token_ids == (await world.say("twin")).token_ids


async def test_what_no_journal_leads_to_quarantines_its_actor_alone(world: Any) -> None:
    """An older image lies before the mutation: a replay from there would give another state."""
    for name in ("a", "b"):
        await world.create(name, STORY)
        await lay_down(world, name)
    await world.visor.mutate(Mutate(actor="a", mutation=HALF))
    await lay_down(world, "a")
    await damage(world, "a")

    with pytest.raises(ImageCorrupt):
        await world.say("a")

    assert (await world.visor.actor("a")).status == "quarantined"
    with pytest.raises(ActorQuarantined):
        await world.say("a")
    assert len((await world.say("b")).token_ids) == 12
    assert [one.kind for one in (await world.visor.fsck(Fsck())).findings] == ["root_damaged"]


async def test_children_that_wake_at_once_from_a_damaged_image_all_wake(world: Any) -> None:
    """The second to find it damaged finds no name to take away any more."""
    for name in ("a", "twin"):
        await world.create(name, STORY)
    for name in ("a", "twin"):
        names = tuple(f"{name}{n}" for n in range(3))
        fork = Fork(actor=name, count=3, names=names, rng=Rng.INHERIT)
        await world.visor.fork(fork)
        for n, child in enumerate(names):
            await world.append(child, "and" * n + ".")
    await lay_down(world, "a", *(f"a{n}" for n in range(3)))
    for n in range(3):
        record = (await world.visor.actor(f"a{n}")).record
        await world.catalog.forget([(record.segment, record.position)])
    await damage(world, "a0")

    said = await asyncio.gather(*(world.say(f"a{n}") for n in range(3)))

    for n in range(3):
        assert said[n].token_ids == (await world.say(f"twin{n}")).token_ids


async def test_an_image_of_another_build_is_not_given_up(
    worlds: Callable[..., Any],
) -> None:
    """This build cannot make those bits again: a repair by the one that can is still possible."""
    old = await worlds()
    await old.create("a", STORY)
    await lay_down(old, "a")
    new = await worlds(catalog=old.catalog, images=old.images, build="toy-2")
    ref = await damage(new, "a")

    with pytest.raises(ImageCorrupt):
        await new.say("a")

    assert await new.catalog.image(ref.digest) == ref
    assert (await new.visor.actor("a")).status == "quarantined"


async def test_with_its_name_left_the_actor_is_lost(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what makes the difference is that the damaged image is passed over."""

    async def keep(self: States, *_: Any) -> None: ...

    monkeypatch.setattr(States, "disown", keep)
    await world.create("a", STORY)
    await lay_down(world, "a")
    await damage(world, "a")
    with pytest.raises(ImageCorrupt):
        await world.say("a")


# -- an image that an actor in memory remembers ----------------------------------------------------
async def place_of(world: Any, name: str) -> tuple[tuple[int, int], Any]:
    record = (await world.visor.actor(name)).record
    place = record.segment, record.position
    return place, await world.catalog.image_at(*place)


async def test_who_left_for_the_disk_comes_back_without_a_question(world: Any) -> None:
    await world.create("a", STORY)
    await world.create("twin", STORY)
    await lay_down(world, "a")
    asked = []
    world.catalog.nearest_image = lambda *place: asked.append(place)
    await world.visor.resume(Resume(actor="a"))
    assert (await world.say("a")).token_ids == (await world.say("twin")).token_ids
    assert not asked


@pytest.mark.parametrize("written_anew", [True, False], ids=["written anew", "collected"])
async def test_a_remembered_image_that_has_gone_is_asked_for(
    world: Any, written_anew: bool
) -> None:
    await world.create("a", STORY)
    await world.create("twin", STORY)
    await lay_down(world, "a")
    place, ref = await place_of(world, "a")
    if written_anew:
        row = bytearray(world.guest.layout.row_bytes)
        meta = await world.images.get(ref, memoryview(row))
        await world.catalog.add_image(*place, await world.images.put(memoryview(row), meta))
    else:
        await world.catalog.forget([place])
    world.images.free(ref)

    assert (await world.say("a")).token_ids == (await world.say("twin")).token_ids
    assert (await world.visor.actor("a")).status == "idle"


async def test_what_is_remembered_is_of_one_place_only(world: Any) -> None:
    """After a rollback the newest image is not the actor's state any more."""
    for name in ("a", "twin"):
        await world.create(name, STORY)
        await world.visor.snapshot(Snapshot(actor=name, tag=f"of-{name}"))
        await world.say(name)
    await lay_down(world, "a")
    for name in ("a", "twin"):
        await world.visor.rollback(Rollback(actor=name, to=f"of-{name}", rng=Rng.INHERIT))
    assert (await world.say("a")).token_ids == (await world.say("twin")).token_ids
