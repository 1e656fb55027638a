"""Whoever waits behind a deletion, or comes late, is told that the actor is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from statevisor.hypervisor.commands import (
    Append,
    CreateActor,
    DeleteActor,
    Fork,
    Generate,
    Hibernate,
    Mutate,
    Resume,
    Rollback,
    Snapshot,
    UpdateActor,
)
from statevisor.hypervisor.errors import ActorNotFound
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.vocab import Tier

DECAY = Mutation(rule="decay", params={"alpha": 0.5})

#: Everything that is done to one actor.
OPERATIONS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "append": lambda visor: visor.append(Append(actor="a", prompt="x")),
    "generate": lambda visor: visor.generate(Generate(actor="a", max_tokens=3)),
    "try": lambda visor: visor.generate(Generate(actor="a", max_tokens=3, commit=False)),
    "update": lambda visor: visor.update(UpdateActor(actor="a", pinned=True)),
    "mutate": lambda visor: visor.mutate(Mutate(actor="a", mutation=DECAY)),
    "rollback": lambda visor: visor.rollback(Rollback(actor="a", to=0)),
    "hibernate": lambda visor: visor.hibernate(Hibernate(actor="a", tier=Tier.HOST)),
    "resume": lambda visor: visor.resume(Resume(actor="a")),
    "delete": lambda visor: visor.delete(DeleteActor(actor="a")),
}


@pytest.fixture
async def deleting(world: Any) -> Any:
    """Ends a deletion of `a` that has the mailbox, and which others wait behind."""
    await world.create("a")
    delete, may, has = world.catalog.delete, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any, **more: Any) -> None:
        has.set()
        await may.wait()
        await delete(*args, **more)

    world.catalog.delete = slow
    deletion = asyncio.create_task(world.visor.delete(DeleteActor(actor="a")))
    await has.wait()
    world.catalog.delete = delete

    async def end() -> None:
        may.set()
        await deletion

    yield end
    await end()


@pytest.mark.parametrize("name", OPERATIONS)
async def test_what_waits_behind_a_deletion_is_refused(
    world: Any, deleting: Callable[[], Awaitable[None]], name: str
) -> None:
    waiting = asyncio.ensure_future(OPERATIONS[name](world.visor))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    await deleting()
    with pytest.raises(ActorNotFound, match="a has been deleted"):
        await asyncio.wait_for(waiting, 5)
    assert not world.visor._batchers["toy"].residency.actors


@pytest.mark.parametrize("name", OPERATIONS)
async def test_what_comes_after_a_deletion_is_refused(world: Any, name: str) -> None:
    await world.create("a")
    await world.visor.delete(DeleteActor(actor="a"))
    with pytest.raises(ActorNotFound):
        await OPERATIONS[name](world.visor)


@pytest.mark.usefixtures("deleting")
async def test_forks_and_snapshots_do_not_wait_for_it(world: Any) -> None:
    await world.visor.snapshot(Snapshot(actor="a"))
    (child,) = await world.visor.fork(Fork(actor="a", count=1))
    assert child.record.parent == "a@1"


async def test_who_waits_does_not_get_whoever_has_the_name_next(
    world: Any, deleting: Callable[[], Awaitable[None]]
) -> None:
    waiting = asyncio.ensure_future(OPERATIONS["append"](world.visor))
    await asyncio.sleep(0.01)
    await deleting()
    await world.create("a", "another")
    with pytest.raises(ActorNotFound):
        await waiting
    assert (await world.visor.transcript("a")).text == "another"


async def test_an_actor_that_is_deleted_before_its_prompt_is_absorbed_was_created(
    world: Any,
) -> None:
    admit = world.visor._roster.admit

    async def deleted_at_once(record: Any) -> Any:
        actor = await admit(record)
        await world.visor.delete(DeleteActor(actor=record.id))
        return actor

    world.visor._roster.admit = deleted_at_once
    view = await world.visor.create(CreateActor(name="a", prompt="hello", seed=1))
    assert view.status == "deleted"
    assert not world.visor._batchers["toy"].residency.actors


async def test_a_drain_passes_over_who_is_deleted_meanwhile(
    world: Any, deleting: Callable[[], Awaitable[None]]
) -> None:
    draining = asyncio.create_task(world.visor.drain())
    await asyncio.sleep(0.01)
    await deleting()
    assert (await asyncio.wait_for(draining, 5)).failed == ()
