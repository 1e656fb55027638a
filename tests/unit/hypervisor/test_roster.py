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
