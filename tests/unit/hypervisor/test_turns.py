"""A turn from command to result, on twins: exact, isolated, repeatable."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statevisor.guests.toy import POISON
from statevisor.hypervisor.catalog_port import Once
from statevisor.hypervisor.commands import Append, CreateActor, Generate, Rollback
from statevisor.hypervisor.errors import (
    ActorBusy,
    ActorQuarantined,
    GenerationConflict,
    IdempotencyMismatch,
    InvalidRequest,
)
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.turns import Turns
from statevisor.hypervisor.turnstile import FEW
from statevisor.hypervisor.vocab import FinishReason

LONG = "the quick brown fox jumps over the lazy dog"


@settings(
    max_examples=25,
    deadline=None,  # a busy machine is no fault of the tokens
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(cuts=st.lists(st.integers(1, 9), max_size=12))
async def test_any_cut_of_the_input_gives_the_same_tokens(
    worlds: Callable[..., Any], cuts: list[int]
) -> None:
    world = await worlds()
    await world.create("whole", LONG)
    await world.create("pieces", None)
    rest = LONG
    for cut in cuts:
        if rest[:cut]:
            await world.append("pieces", rest[:cut])
            rest = rest[cut:]
    whole = await world.say("whole")
    pieces = await world.say("pieces", rest or None)
    assert whole.token_ids == pieces.token_ids


async def test_neighbours_do_not_change_an_actors_tokens(worlds: Callable[..., Any]) -> None:
    alone, crowd = await worlds(), await worlds(slots=8)
    await alone.create("a", LONG)
    expected = await alone.say("a", max_tokens=40)
    for name in "abcdefgh":
        await crowd.create(name, LONG if name == "a" else LONG[: ord(name) - 90])
    views = await asyncio.gather(*(crowd.say(name, max_tokens=40) for name in "hgfedcba"))
    assert views[-1].token_ids == expected.token_ids


async def test_a_turn_cut_into_turns_is_the_same_turn(world: Any) -> None:
    await world.create("a")
    await world.create("b")
    whole = await world.say("a", max_tokens=9)
    parts = [await world.say("b", max_tokens=3) for _ in range(3)]
    assert whole.token_ids == sum((part.token_ids for part in parts), ())


async def test_penalties_go_on_over_turns_without_a_prompt(world: Any) -> None:
    hot = SamplerSettings(temperature=1.0, presence_penalty=2.0, penalty_decay=0.9)
    await world.create("a")
    await world.create("b")
    whole = await world.say("a", max_tokens=9, settings=hot)
    parts = [await world.say("b", max_tokens=3, settings=hot) for _ in range(3)]
    plain = await world.say("b", max_tokens=9)
    assert whole.token_ids == sum((part.token_ids for part in parts), ())
    assert whole.token_ids != plain.token_ids


async def test_stop_strings_cut_the_text_and_not_the_transcript(world: Any) -> None:
    await world.create("a")
    await world.create("b")
    whole = await world.say("a", max_tokens=40)
    stop = whole.text[7:10]
    view = await world.say("b", max_tokens=40, stop=(stop,))
    assert view.finish is FinishReason.STOP
    assert view.text == whole.text[: whole.text.index(stop)]
    assert view.token_ids == whole.token_ids[: whole.text.index(stop) + 3]


async def test_a_stop_token_stays_in_the_transcript(world: Any) -> None:
    await world.create("a")
    await world.create("b")
    whole = await world.say("a", max_tokens=40)
    stop = whole.token_ids[5]
    view = await world.say("b", max_tokens=40, stop_token_ids=(stop,))
    assert view.finish is FinishReason.STOP
    assert view.token_ids[-1] == stop
    assert view.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1]


async def test_a_poisoned_actor_is_quarantined_alone_and_a_rollback_cures_it(
    worlds: Callable[..., Any],
) -> None:
    world, control = await worlds(), await worlds()
    for each in (world, control):
        for name in "abc":
            await each.create(name, LONG)
    await world.visor.create(CreateActor(name="bad", prompt="x", seed=1))
    bad = world.visor.generate(Generate(actor="bad", prompt=(POISON,), max_tokens=5))
    stream, *views = await asyncio.gather(bad, *(world.say(n, max_tokens=30) for n in "abc"))
    view = await stream.result()
    assert (view.finish, view.error) == (FinishReason.ERROR, "actor_quarantined")
    assert (await world.visor.actor("bad")).status == "quarantined"
    with pytest.raises(ActorQuarantined):
        await world.say("bad")
    for name, seen in zip("abc", views, strict=True):
        assert seen.token_ids == (await control.say(name, max_tokens=30)).token_ids
    for name in "defg":  # the freed slot is used again and is clean
        await world.create(name, LONG)
        assert (await world.say(name, max_tokens=30)).token_ids == views[0].token_ids
    await world.visor.rollback(Rollback(actor="bad", to="bad@0"))
    assert (await world.say("bad")).finish is FinishReason.LENGTH


async def test_an_uncommitted_turn_changes_nothing(world: Any) -> None:
    await world.create("a")
    await world.create("twin")
    before = await world.visor.actor("a")
    trial = await world.say("a", " then", commit=False)
    assert await world.visor.actor("a") == before
    real = await world.say("twin", " then")
    assert trial.token_ids == real.token_ids
    assert (await world.say("a", " then")).token_ids == real.token_ids


async def test_a_turns_seed_holds_for_that_turn(world: Any) -> None:
    await world.create("a", seed=1)
    await world.create("b", seed=2)
    assert (await world.say("a", seed=2)).token_ids == (await world.say("b")).token_ids


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": (272,)},
        {"prompt": (-1,)},
        {"max_tokens": 0},
        {"max_tokens": 1 << 40},
        {"stop_token_ids": (999,)},
    ],
)
async def test_a_bad_request_changes_nothing(world: Any, wrong: dict[str, Any]) -> None:
    await world.create("a")
    before = await world.visor.actor("a")
    with pytest.raises(InvalidRequest):
        await world.visor.generate(Generate(actor="a", **wrong))
    assert await world.visor.actor("a") == before


async def test_an_empty_append_is_refused_but_an_empty_first_prompt_is_bos(world: Any) -> None:
    await world.create("a", None)
    assert (await world.visor.append(Append(actor="a", prompt=""))).position == 1
    with pytest.raises(InvalidRequest):
        await world.visor.append(Append(actor="a", prompt=""))


async def test_a_stale_generation_is_refused_inside_the_transaction(world: Any) -> None:
    await world.create("a")
    generation = (await world.visor.actor("a")).record.generation
    await world.say("a")
    with pytest.raises(GenerationConflict):
        await world.visor.generate(Generate(actor="a", if_generation=generation))


async def test_a_key_repeats_its_turn_and_refuses_another_body(world: Any) -> None:
    await world.create("a")
    once = Once(key="k", request="r1")
    first = await world.say("a", " hi", once=once)
    again = await world.say("a", " hi", once=once)
    assert again == first
    with pytest.raises(IdempotencyMismatch):
        await world.say("a", " other", once=Once(key="k", request="r2"))
    assert (await world.visor.actor("a")).record.position == first.position


async def test_a_key_whose_turn_runs_is_busy(world: Any) -> None:
    await world.create("a")
    once = Once(key="k", request="r")
    ask = Generate(actor="a", max_tokens=2000, ignore_eos=True, once=once)
    stream = await world.visor.generate(ask)
    with pytest.raises(ActorBusy):
        await world.visor.generate(ask)
    stream.cancel()
    await stream.result()


async def test_the_mailbox_is_bounded(worlds: Callable[..., Any]) -> None:
    world = await worlds(config={"mailbox": 2})
    await world.create("a")
    running = await world.visor.generate(Generate(actor="a", max_tokens=2000, ignore_eos=True))
    waiting = [asyncio.create_task(world.append("a", "x")) for _ in range(2)]
    await asyncio.sleep(0.01)
    with pytest.raises(ActorBusy):
        await world.append("a", "y")
    running.cancel()
    await asyncio.gather(running.result(), *waiting)


async def test_a_step_that_raises_fails_its_rows_and_loses_nothing(world: Any) -> None:
    await world.create("a")
    await world.create("twin")
    step = world.guest.step
    calls = iter(range(100))

    def breaks(plan: Any) -> Any:
        if next(calls) == 4:
            raise RuntimeError("device lost")
        return step(plan)

    world.guest.step = breaks
    view = await world.say("a", max_tokens=20)
    assert (view.finish, view.error) == (FinishReason.ERROR, "internal")
    world.guest.step = step
    rest = await world.say("a", max_tokens=20 - len(view.token_ids))
    whole = await world.say("twin", max_tokens=20)
    assert view.token_ids + rest.token_ids == whole.token_ids


async def test_a_step_loop_that_dies_makes_the_server_unready(world: Any) -> None:
    await world.create("a")
    assert world.visor.ready

    def broken(*_: Any) -> Any:
        raise MemoryError("planning failed")

    loop = world.visor._batchers["toy"].loop
    loop._gather = broken
    failed = asyncio.create_task(world.visor.failed())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(world.say("a"), 0.2)
    assert isinstance(await failed, MemoryError)
    assert not world.visor.ready


async def test_latencies_are_metered(world: Any) -> None:
    await world.create("a")
    await world.say("a", max_tokens=5)
    assert len(world.meter.seen["time_to_first_token_seconds"]) == 1
    assert world.meter.seen["inter_token_latency_seconds"]


async def test_a_key_repeats_what_ended_its_turn(world: Any) -> None:
    await world.create("a")
    once = Once(key="k", request="r")
    command = Generate(actor="a", prompt=(POISON, 1), once=once)
    first = await (await world.visor.generate(command)).result()
    assert first.error == "actor_quarantined"
    assert await (await world.visor.generate(command)).result() == first


async def test_a_turn_behind_a_turn_reads_no_transcript(world: Any) -> None:
    read: list[tuple[int, int]] = []
    transcript = world.catalog.transcript

    async def counted(segment: int, start: int, stop: int) -> Any:
        read.append((start, stop))
        return await transcript(segment, start, stop)

    await world.create("a")
    await world.say("a", " and")
    world.catalog.transcript = counted
    await world.append("a", "so")
    await world.say("a", " and")
    await world.say("a")
    assert not read
    # the control: where it stands somewhere else, its last token is read
    (actor,) = world.visor._batchers["toy"].residency.actors.values()
    await world.visor.rollback(Rollback(actor="a", to=actor.record.position - 3))
    await world.say("a")
    assert read


async def test_a_turn_that_goes_on_after_a_crash_has_a_place_for_every_tokens_logprobs(
    worlds: Callable[..., Any],
) -> None:
    world, plain = await worlds(), await worlds()
    once = Once(key="k", request="r")
    wanted = SamplerSettings(temperature=1.0, logprobs=2)
    command = Generate(actor="a", max_tokens=200, settings=wanted, ignore_eos=True, once=once)
    for each in (world, plain):
        await each.create("a")
    stream = await world.visor.generate(command)
    async for event in stream:
        if event.index == 3:
            break
    await world.crash()
    views = [await (await each.visor.generate(command)).result() for each in (world, plain)]
    again = await (await world.visor.generate(command)).result()
    cut, whole = views
    assert cut.token_ids == whole.token_ids
    assert len(cut.logprobs) == len(whole.logprobs) == 200
    told = cut.logprobs.count(None)
    assert 4 <= told < 200
    assert cut.logprobs == (None,) * told + whole.logprobs[told:]
    assert again == cut  # as the key keeps it


async def test_turns_that_have_ended_leave_nothing_for_the_garbage_collector(world: Any) -> None:
    await world.create("a")
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(3):
            await world.say("a")
        gc.collect()
        left = {type(one).__name__ for one in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert not left & {"Turn", "TurnStream", "Door", "Queue"}


async def test_turns_that_end_at_once_are_closed_a_few_at_a_time(
    worlds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await worlds(slots=40)
    names = [f"a{n}" for n in range(40)]
    for name in names:
        await world.create(name)
    turns, closed = [0], list[int]()
    close = Turns._close

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    async def note(self: Turns, *args: Any, **given: Any) -> Any:
        closed.append(turns[0])
        return await close(self, *args, **given)

    monkeypatch.setattr(Turns, "_close", note)
    beside = asyncio.create_task(others())
    await asyncio.gather(*(world.say(name, max_tokens=30) for name in names))
    beside.cancel()
    assert len(closed) == 40
    # what counts stands somewhere in a turn of the event loop, so it may see two halves as one
    assert max(closed.count(turn) for turn in closed) <= 2 * FEW
