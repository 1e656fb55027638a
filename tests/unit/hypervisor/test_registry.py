"""How actors begin."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from statevisor.hypervisor.commands import Hibernate, Resume, Snapshot

PROMPT = "Once upon a time"


@pytest.fixture
def reads(world: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the catalog is asked."""
    told: list[str] = []
    for name in ("actor", "path", "segment", "nearest_image", "image_at", "version", "transcript"):
        ask = getattr(world.catalog, name)

        async def asking(*args: Any, _name: str = name, _ask: Any = ask, **given: Any) -> Any:
            told.append(_name)
            return await _ask(*args, **given)

        monkeypatch.setattr(world.catalog, name, asking)
    return told


async def row(world: Any, name: str) -> list[int]:
    """The state in an actor's slot."""
    actor = await world.visor._roster.find(name)
    return list(world.guest._bank[actor.slot])


async def test_to_begin_and_be_named_reads_nothing(world: Any, reads: list[str]) -> None:
    await world.create("a", prompt=PROMPT)
    await world.visor.snapshot(Snapshot(actor="a"))
    assert reads == []


async def test_the_state_behind_a_prompt_is_the_one_that_the_journal_makes(world: Any) -> None:
    await world.create("a", prompt=PROMPT)
    begun = await row(world, "a")
    await world.crash()
    await world.visor.resume(Resume(actor="a"))
    assert await row(world, "a") == begun


async def test_who_speaks_to_an_actor_before_its_prompt_is_absorbed_is_not_lost(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = world.catalog.create

    async def early() -> None:
        await world.append("a", " and more")
        await world.visor.hibernate(Hibernate(actor="a"))

    async def slow(*args: Any, **given: Any) -> Any:
        record = await create(*args, **given)
        await asyncio.create_task(early())
        return record

    monkeypatch.setattr(world.catalog, "create", slow)
    await world.create("a", prompt=PROMPT)
    monkeypatch.undo()
    await world.create("twin", prompt=PROMPT)
    await world.append("twin", " and more")
    assert await row(world, "a") == await row(world, "twin")
    assert (await world.say("a")).token_ids == (await world.say("twin")).token_ids


async def test_an_actor_that_found_no_slot_begins_when_it_is_touched(worlds: Any) -> None:
    world = await worlds(slots=1, frames=0, config={"slot_wait_s": 0.01})
    await world.create("busy", prompt=PROMPT)
    async with (await world.visor._roster.find("busy")).mailbox.turn():
        await world.create("a", prompt=PROMPT)
    assert (await world.visor.actor("a")).tier.value == "nvme"
    said = await world.say("a")
    assert (await world.say("busy")).token_ids == said.token_ids
