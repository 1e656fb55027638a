"""A turn that is cancelled, by its caller or because that one has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from statevisor.hypervisor.commands import CancelTurn, Generate
from statevisor.hypervisor.errors import InvalidTransition
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.vocab import FinishReason

LONG = "the quick brown fox jumps over the lazy dog"


async def test_a_cancelled_turn_ends_at_its_last_committed_token_and_goes_on_identically(
    world: Any,
) -> None:
    await world.create("a")
    await world.create("twin")
    stream = await world.visor.generate(
        Generate(actor="a", max_tokens=1000, ignore_eos=True, settings=SamplerSettings())
    )
    told = []
    async for event in stream:
        told.append(event.token)
        if len(told) == 5:
            await world.visor.cancel(CancelTurn(actor="a"))
    view = await stream.result()
    assert view.finish is FinishReason.CANCELLED
    assert view.token_ids == tuple(told)
    assert (await world.visor.actor("a")).record.position == view.position
    more = await world.say("a", max_tokens=10, settings=SamplerSettings())
    count = len(view.token_ids) + 10
    whole = await world.say("twin", max_tokens=count, settings=SamplerSettings())
    assert view.token_ids + more.token_ids == whole.token_ids


async def test_a_turn_cancelled_in_the_queue_leaves_the_actor_usable(world: Any) -> None:
    await world.create("a")
    running = await world.visor.generate(Generate(actor="a", max_tokens=2000, ignore_eos=True))
    queued = asyncio.create_task(world.visor.generate(Generate(actor="a", max_tokens=5)))
    await asyncio.sleep(0.01)
    (waiting,) = set((await world.visor._roster.find("a")).turns) - {running.turn_id}
    await world.visor.cancel(CancelTurn(actor="a", turn=waiting))
    view = await (await queued).result()
    assert (view.finish, view.token_ids) == (FinishReason.CANCELLED, ())
    running.cancel()
    await running.result()
    assert (await asyncio.wait_for(world.say("a"), 1)).finish is FinishReason.LENGTH


async def test_cancelling_nothing_is_an_invalid_transition(world: Any) -> None:
    await world.create("a")
    with pytest.raises(InvalidTransition):
        await world.visor.cancel(CancelTurn(actor="a"))


async def test_a_caller_that_goes_away_cancels_its_turn_and_frees_everything(world: Any) -> None:
    await world.create("a")
    blocker = await world.visor.generate(Generate(actor="a", max_tokens=2000, ignore_eos=True))
    caller = asyncio.create_task(world.visor.generate(Generate(actor="a", max_tokens=5)))
    await asyncio.sleep(0.01)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    blocker.cancel()
    await blocker.result()
    await world.say("a")
    assert not (await world.visor._roster.find("a")).turns


async def test_a_cancelled_prompt_is_caught_up_at_the_next_touch(
    worlds: Callable[..., Any],
) -> None:
    world = await worlds(config={"step_tokens": 4})
    await world.create("a", None)
    await world.create("twin", LONG * 20)
    step = world.guest.step
    stream: list[Any] = []

    def slow(plan: Any) -> Any:
        if stream:
            stream[0].cancel()
        return step(plan)

    world.guest.step = slow
    stream.append(await world.visor.generate(Generate(actor="a", prompt=LONG * 20)))
    view = await stream[0].result()
    stream.clear()
    assert view.finish is FinishReason.CANCELLED
    assert (await world.say("a")).token_ids == (await world.say("twin")).token_ids
