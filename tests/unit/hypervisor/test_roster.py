"""What is shown of actors."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

from statevisor.hypervisor.commands import (
    DeleteActor,
    Fork,
    Generate,
    Hibernate,
    Rollback,
    Snapshot,
    UpdateActor,
)
from statevisor.hypervisor.errors import ActorNotFound
from statevisor.hypervisor.sampling import SamplerSettings

HOT = SamplerSettings(temperature=1.0)


async def test_a_renamed_parent_is_shown_by_its_new_name(world: Any) -> None:
    await world.create("a")
    await world.visor.fork(Fork(actor="a", names=("child",)))
    await world.say("child")
    await world.visor.update(UpdateActor(actor="a", name="b"))
    assert (await world.visor.actor("child")).record.parent == "b@0"


async def test_actors_at_rest_are_dropped_from_a_full_table(worlds: Any) -> None:
    world = await worlds(slots=2, frames=0, config={"actors_in_memory": 10})
    table = world.visor._roster.actors
    for index in range(60):
        await world.create(f"a{index}")
        assert len(table) <= 10
    await world.create("twin")
    assert (await world.say("a0")).token_ids == (await world.say("twin")).token_ids


async def test_a_table_of_actors_that_are_not_at_rest_is_not_searched_at_every_step(
    worlds: Any,
) -> None:
    world = await worlds(slots=4, frames=60, config={"actors_in_memory": 10})
    looks: list[str] = []
    at_rest = world.visor._roster._at_rest
    world.visor._roster._at_rest = lambda actor: (looks.append(actor.id), at_rest(actor))[1]
    for index in range(60):
        await world.create(f"a{index}")
    assert len(world.visor._roster.actors) == 60  # in a slot or a frame, all of them
    assert len(looks) < 60 * 60 / 5  # at every step: 60 * 50 looks or so


async def test_who_was_found_by_name_is_found_without_the_catalog(world: Any) -> None:
    await world.create("a")
    asked = _asked(world)
    await world.say("a")
    first = len(asked)
    await world.say("a")
    assert asked[first:] == []


async def test_a_name_finds_who_has_it_now(world: Any) -> None:
    await world.create("a")
    await world.say("a")  # found by name
    first = await _id(world, "a")
    await world.visor.update(UpdateActor(actor="a", name="b"))
    await world.create("a")
    await world.say("a")
    second = await _id(world, "a")
    assert await _id(world, "b") == first != second
    await world.visor.delete(DeleteActor(actor="a"))
    with pytest.raises(ActorNotFound):
        await world.say("a")
    await world.create("a")
    assert await _id(world, "a") not in (first, second)


async def test_names_of_actors_that_were_dropped_are_dropped(worlds: Any) -> None:
    world = await worlds(slots=2, frames=0, config={"actors_in_memory": 10})
    for index in range(60):
        await world.create(f"a{index}")
        await world.say(f"a{index}")
    roster = world.visor._roster
    gc.collect()
    assert len(roster._named) <= 10
    assert await _id(world, "a0")


async def test_who_is_in_memory_is_looked_at_without_the_catalog(world: Any) -> None:
    await world.create("a")
    await world.visor.fork(Fork(actor="a", names=("child",)))
    for name in ("a", "child"):
        await world.say(name)
        await world.visor.actor(name)
    asked = _asked(world)
    views = []
    for name in ("a", "child"):
        await world.say(name)
        views.append(await world.visor.actor(name))
        assert views[-1] == await world.visor.actor(views[-1].record.id)
    assert asked == []
    for view in views:
        assert view.record == await world.catalog.actor(view.record.id)


async def test_what_is_looked_at_in_memory_shows_every_change_that_was_answered(world: Any) -> None:
    await world.create("a")
    await world.visor.fork(Fork(actor="a", names=("child",)))
    key = (await world.visor.actor("child")).record.id

    async def shown() -> Any:
        view = await world.visor.actor(key)
        assert view.record == await world.catalog.actor(key)
        assert world.visor.glance(key) == view
        return view.record

    await world.say("child")
    assert (await shown()).parent == "a@0"
    await world.visor.update(UpdateActor(actor="child", labels={"team": "x"}, pinned=True))
    assert ((await shown()).labels, (await shown()).pinned) == ({"team": "x"}, True)
    await world.visor.snapshot(Snapshot(actor="child", tag="before"))
    await shown()
    await world.say("child")
    end = (await shown()).position
    await world.visor.rollback(Rollback(actor="child", to="before"))
    assert (await shown()).position < end
    await world.visor.hibernate(Hibernate(actor="child"))
    await world.visor.update(UpdateActor(actor="a", name="b"))
    assert (await shown()).parent == "b@0"
    parent = (await world.visor.actor("b")).record.id
    await world.visor.delete(DeleteActor(actor="b"))
    assert (await shown()).parent == f"{parent}@0"
    await world.visor.update(UpdateActor(actor="child", name="kid"))
    assert (await shown()).name == "kid"
    with pytest.raises(ActorNotFound):
        await world.visor.actor("child")
    await world.visor.delete(DeleteActor(actor="kid"))
    for gone in ("kid", key):
        assert world.visor.glance(gone) is None
        with pytest.raises(ActorNotFound):
            await world.visor.actor(gone)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_was_done_what_is_looked_at_is_what_the_catalog_has(
    worlds: Any, seed: int
) -> None:
    world = await worlds(slots=3, frames=2, config={"actors_in_memory": 8})
    chance, names, fresh = random.Random(seed), ["a"], (f"n{n}" for n in count())
    await world.create("a")

    async def rename(name: str) -> None:
        names.append(next(fresh))
        await world.visor.update(UpdateActor(actor=name, name=names[-1]))
        names.remove(name)
        if chance.random() < 0.5:  # another has the name then
            await world.create(name)
            names.append(name)

    async def fork(name: str) -> None:
        made = [next(fresh) for _ in range(chance.randint(1, 3))]
        await world.visor.fork(Fork(actor=name, count=len(made), names=tuple(made)))
        names.extend(made)

    async def delete(name: str) -> None:
        if len(names) > 2:
            await world.visor.delete(DeleteActor(actor=name))
            names.remove(name)

    visor = world.visor
    deeds: list[Callable[[str], Awaitable[object]]] = [
        fork,
        rename,
        delete,
        lambda name: world.say(name, max_tokens=2),
        lambda name: visor.snapshot(Snapshot(actor=name)),
        lambda name: visor.hibernate(Hibernate(actor=name)),
        lambda name: visor.update(UpdateActor(actor=name, labels={"k": next(fresh)})),
        lambda name: visor.rollback(Rollback(actor=name, to=f"{name}@0")),
    ]
    known = 0
    for _ in range(120):
        await chance.choice(deeds)(chance.choice(names))
        for name in chance.sample(names, min(4, len(names))):
            row = await world.catalog.actor(name)
            assert (await visor.actor(name)).record == row
            again = visor.glance(row.id)
            assert again is None or again.record == row
            known += again is not None
    assert known > 40


async def test_a_parent_that_was_read_before_its_rename_is_read_again(world: Any) -> None:
    await world.create("a")
    await world.visor.fork(Fork(actor="a", names=("child",)))
    await world.say("child")
    ask, late = world.catalog.actor, asyncio.Event()

    async def slow(key: str) -> Any:
        record = await ask(key)
        await late.wait()
        return record

    world.catalog.actor = slow
    looking = asyncio.ensure_future(world.visor.actor("child"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    world.catalog.actor = ask
    await world.visor.update(UpdateActor(actor="a", name="b"))
    late.set()
    await looking  # it began before the rename
    assert (await world.visor.actor("child")).record.parent == "b@0"


async def test_a_turn_that_runs_is_looked_at_as_far_as_it_is_committed(world: Any) -> None:
    await world.create("a")
    stream = await world.visor.generate(
        Generate(actor="a", max_tokens=50, ignore_eos=True, settings=HOT)
    )
    async for event in stream:
        view = world.visor.glance("a")
        assert view.durable_position == view.record.position > event.position
    assert (await stream.result()).position == world.visor.glance("a").record.position


async def _id(world: Any, name: str) -> str:
    found: str = (await world.visor._roster.find(name)).id
    return found


def _asked(world: Any) -> list[str]:
    """The names that the catalog is asked for from now on."""
    asked: list[str] = []
    ask = world.catalog.actor

    async def asking(key: str) -> Any:
        asked.append(key)
        return await ask(key)

    world.catalog.actor = asking
    return asked
