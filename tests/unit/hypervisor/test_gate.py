"""What a turn draws leaves behind the journal: never before it, nor without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from statevisor.hypervisor.commands import Generate
from statevisor.hypervisor.errors import StatevisorError
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.vocab import FinishReason


async def test_no_token_is_seen_before_the_journal_has_it(world: Any) -> None:
    await world.create("a")
    journal, committed = world.catalog.journal, []
    hold = asyncio.Event()

    async def slow(entries: Any, *, incarnation: int) -> None:
        await hold.wait()
        await journal(entries, incarnation=incarnation)
        committed.extend(token for entry in entries for token in entry.tokens)

    world.catalog.journal = slow
    stream = await world.visor.generate(Generate(actor="a", max_tokens=5, ignore_eos=True))
    first = asyncio.ensure_future(anext(aiter(stream)))
    for _ in range(200):
        await asyncio.sleep(0)
    assert not first.done()
    hold.set()
    event = await first
    assert event.token in committed


async def test_async_durability_opens_the_gate_at_once(worlds: Callable[..., Any]) -> None:
    world = await worlds(config={"durability": "async"})
    await world.create("a")
    journal, hold = world.catalog.journal, asyncio.Event()

    async def slow(entries: Any, *, incarnation: int) -> None:
        await hold.wait()
        await journal(entries, incarnation=incarnation)

    world.catalog.journal = slow
    stream = await world.visor.generate(Generate(actor="a", max_tokens=5, ignore_eos=True))
    event = await asyncio.wait_for(anext(aiter(stream)), 5)
    view = await world.visor.actor("a")
    assert event.position >= view.durable_position
    hold.set()
    assert (await stream.result()).durable_position == event.position + 5


async def test_a_failed_commit_ends_the_turn_at_what_is_committed(world: Any) -> None:
    await world.create("a")
    await world.create("twin")
    journal, calls = world.catalog.journal, []

    async def fails_once(entries: Any, *, incarnation: int) -> None:
        calls.append(entries)
        if len(calls) == 2:
            raise StatevisorError("the disk is full")
        await journal(entries, incarnation=incarnation)

    world.catalog.journal = fails_once
    stream = await world.visor.generate(Generate(actor="a", max_tokens=30, ignore_eos=True))
    told = [event.token async for event in stream]
    view = await stream.result()
    assert (view.finish, view.error) == (FinishReason.ERROR, "internal")
    assert tuple(told) == view.token_ids
    assert len(told) < 30
    rest = await world.say("a", max_tokens=30 - len(told), settings=SamplerSettings())
    whole = await world.say("twin", max_tokens=30, settings=SamplerSettings())
    assert view.token_ids + rest.token_ids == whole.token_ids


async def test_tokens_behind_a_failed_group_are_dropped_and_nobody_hangs(world: Any) -> None:
    await world.create("a")
    hold = asyncio.Event()

    async def fails_late(entries: Any, *, incarnation: int) -> None:
        await hold.wait()
        raise StatevisorError("the disk is full")

    world.catalog.journal = fails_late
    stream = await world.visor.generate(Generate(actor="a", max_tokens=30, ignore_eos=True))
    await asyncio.sleep(0.05)  # more tokens gather behind the group that is about to fail
    hold.set()
    view = await asyncio.wait_for(stream.result(), 5)
    assert (view.error, view.token_ids) == ("internal", ())
