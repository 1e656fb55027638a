"""What is shown of actors."""

from __future__ import annotations

from typing import Any

from statevisor.hypervisor.commands import Fork, UpdateActor


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
