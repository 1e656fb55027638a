"""Steps ahead: planned while one runs, read one step late, and not a bit of difference."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from statevisor.guests.toy import EOS, POISON, ToyGuest
from statevisor.hypervisor.budget import Budget
from statevisor.hypervisor.commands import Append, Fork, Generate, Hibernate
from statevisor.hypervisor.errors import ActorQuarantined
from statevisor.hypervisor.plan import MOST_STOPS, RowResult
from statevisor.hypervisor.runway import MOST_UNTOLD
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.vocab import FinishReason, Rng, Tier

HOT = SamplerSettings(temperature=1.0)

CASES: dict[str, dict[str, Any]] = {
    "greedy": {"settings": SamplerSettings()},
    "hot": {"settings": HOT},
    "one token": {"max_tokens": 1},
    "two tokens": {"max_tokens": 2},
    "penalties": {"settings": SamplerSettings(temperature=1.0, frequency_penalty=0.7)},
    "logprobs": {"settings": SamplerSettings(temperature=1.0, logprobs=3)},
    "stop string": {"stop": ("e", "t ")},
    "stop token": {"ignore_eos": False, "max_tokens": 300},
    "many stop tokens": {"stop_token_ids": tuple(range(20)), "max_tokens": 60},
}


class Ahead(ToyGuest):
    """A toy whose plans begin before the last is collected; keeps what was asked of it.

    It seems to take longer than the host, which has a step given once at a time.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.steps_ahead = 2
        self.asked: list[str] = []
        self.plans: list[Any] = []

    def submit(self, plan: Any) -> Any:
        self.asked.append("submit")
        self.plans.append(plan)
        return super().submit(plan)

    def waits(self, ticket: Any) -> bool:
        return True

    def collect(self, ticket: Any) -> Any:
        self.asked.append("collect")
        return super().collect(ticket)


class Idle(Ahead):
    """One that is always there before the host: a step is given several times at once."""

    def waits(self, ticket: Any) -> bool:
        return False


@pytest.fixture(params=[Ahead, Idle])
async def pair(request: pytest.FixtureRequest, worlds: Callable[..., Any]) -> tuple[Any, Any]:
    """A world that steps ahead and a plain one."""
    return await worlds(guest_type=request.param), await worlds()


def rows_of(world: Any) -> list[list[int]]:
    """The states of all slots."""
    rows = [list(row) for row in world.guest._bank[1:]]
    return sorted(rows)


@pytest.mark.parametrize("case", CASES)
async def test_a_turn_says_the_same_and_leaves_the_same_state(pair: Any, case: str) -> None:
    views = []
    for world in pair:
        said = []
        for seed in range(4):
            await world.create(f"a{seed}", seed=seed)
            said.append(await world.say(f"a{seed}", " and", **CASES[case]))
            said.append(await world.say(f"a{seed}", max_tokens=3))
        views.append([replace(view, id="") for view in said])
    assert views[0] == views[1]
    assert rows_of(pair[0]) == rows_of(pair[1])
    if case == "stop token":
        assert any(view.token_ids[-1] == EOS for view in views[0])


async def test_turns_beside_each_other_leave_the_states_of_turns_alone(pair: Any) -> None:
    ahead, plain = pair
    told = []
    for world in pair:
        for name, seed in (("a", 1), ("b", 2), ("c", 3)):
            await world.create(name, seed=seed)
        turns = [world.say("a", **CASES["stop token"]), world.say("b", max_tokens=40)]
        turns.append(world.say("c", " why", **CASES["stop string"]))
        if world is plain:
            told.append([await turn for turn in turns])
        else:
            told.append(await asyncio.gather(*turns))
    assert [view.token_ids for view in told[0]] == [view.token_ids for view in told[1]]
    assert rows_of(ahead) == rows_of(plain)


class Begun(Ahead):
    """A result comes no sooner than the next of `wanted` plans has been begun."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.wanted, self.read, self.missed = 0, 0, False
        self.patience = 20.0
        self.news = threading.Condition()

    def submit(self, plan: Any) -> Any:
        with self.news:
            self.news.notify_all()
            return super().submit(plan)

    def collect(self, ticket: Any) -> Any:
        with self.news:
            self.read += 1
            begun = min(self.read + 1, self.wanted)
            self.missed |= not self.news.wait_for(lambda: len(self.plans) >= begun, self.patience)
            return super().collect(ticket)


class OneByOne(Begun):
    """The control: begins none before the last is read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.steps_ahead, self.patience = 1, 0.1


@pytest.mark.parametrize("guest_type", [Begun, OneByOne])
async def test_the_next_step_begins_before_the_last_is_read(
    worlds: Callable[..., Any], guest_type: type[Begun]
) -> None:
    world = await worlds(guest_type=guest_type)
    await world.create("a", "x" * 150)
    guest = world.guest
    guest.plans.clear()
    guest.read, guest.wanted = 0, 5
    await world.say("a", max_tokens=5)
    assert guest.missed == (guest_type is OneByOne)
    followed = [row.follows for plan in guest.plans[1:] for row in plan.rows]
    assert followed == [guest_type is Begun] * 4


async def test_a_guest_that_waits_for_the_host_is_given_a_step_several_times(
    worlds: Callable[..., Any],
) -> None:
    world, plain = await worlds(guest_type=Idle), await worlds()
    for name, seed, count in (("a", 1, 100), ("b", 2, 57), ("c", 3, 20)):
        for each in (world, plain):
            await each.create(name, seed=seed)
        turns = [each.say(name, max_tokens=count, settings=HOT) for each in (world, plain)]
        ahead, alone = await asyncio.gather(*turns)
        assert ahead.token_ids == alone.token_ids
    assert max(plan.times for plan in world.guest.plans) > 1
    assert rows_of(world) == rows_of(plain)


async def test_steps_go_on_while_the_event_loop_is_busy_and_are_told_together(
    worlds: Callable[..., Any],
) -> None:
    world, plain = await worlds(guest_type=Ahead), await worlds()
    for each in (world, plain):
        await each.create("a", seed=1)
    turn = Generate(actor="a", max_tokens=200, settings=HOT, ignore_eos=True)
    stream = await world.visor.generate(turn)
    told: list[int] = []
    begun = asyncio.Event()

    def listen(events: Any) -> None:
        told.append(len(events))
        begun.set()

    stream.listen(listen)
    await begun.wait()
    untold = world.visor._batchers["toy"].loop._runway
    for _ in range(2000):
        if untold._steps == MOST_UNTOLD:
            break
        time.sleep(0.01)  # noqa: ASYNC251 - nothing else may run
    assert untold._steps == MOST_UNTOLD
    view = await stream.result()
    assert max(told) > 2
    assert view.token_ids == (await plain.say("a", max_tokens=200, settings=HOT)).token_ids
    assert rows_of(world) == rows_of(plain)


class Held(Ahead):
    """Results come one by one, when they are let go; says what else is called meanwhile."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.go = threading.Semaphore(0)
        self.free = True
        self.loaded = threading.Event()

    def collect(self, ticket: Any) -> Any:
        assert self.free or self.go.acquire(timeout=20)
        return super().collect(ticket)

    def load(self, slot: int, row: memoryview, start: int | None = None) -> None:
        super().load(slot, row, start)
        self.loaded.set()


async def test_who_arrives_waits_for_no_result_and_for_few_steps(
    worlds: Callable[..., Any],
) -> None:
    world, plain = await worlds(guest_type=Held), await worlds()
    guest = world.guest
    for each in (world, plain):
        await each.create("other", seed=1)
        await each.create("a", "the story", seed=2)
        await each.visor.hibernate(Hibernate(actor="a", tier=Tier.HOST))
    guest.loaded.clear()
    stream = await world.visor.generate(Generate(actor="other", max_tokens=90, settings=HOT))
    async for event in stream:
        if event.index == 3:
            break
    guest.free = False
    await asyncio.sleep(0.05)
    mine = asyncio.create_task(world.say("a", max_tokens=3))
    assert await asyncio.to_thread(guest.loaded.wait, 20)
    before = len(guest.plans)
    while all(len(plan.rows) == 1 for plan in guest.plans):
        guest.go.release()
        await asyncio.sleep(0.01)
    first = next(at for at, plan in enumerate(guest.plans) if len(plan.rows) == 2)
    assert first - before <= 1
    guest.free = True
    guest.go.release(100)
    told = [(await mine).token_ids, (await stream.result()).token_ids]
    assert told[0] == (await plain.say("a", max_tokens=3)).token_ids
    assert told[1] == (await plain.say("other", max_tokens=90, settings=HOT)).token_ids
    assert rows_of(world) == rows_of(plain)


async def test_what_only_the_host_can_see_is_not_run_ahead(pair: Any) -> None:
    world, _ = pair
    await world.create("a")
    for case in ("penalties", "stop string", "many stop tokens"):
        await world.say("a", **CASES[case])
    await world.say("a", max_tokens=1)
    rows = [row for plan in world.guest.plans for row in plan.rows]
    assert not any(row.follows for row in rows)
    assert all(len(row.stops) <= MOST_STOPS for row in rows)


class Unmasked(Ahead):
    """The guard taken out: a row is run, and only its result kept back, although a row before it
    drew a stop."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ended: set[int] = set()

    def submit(self, plan: Any) -> Any:
        return tuple(self._once(single) for single in plan.resolved())

    def _once(self, plan: Any) -> Any:
        rows = tuple(replace(row, stops=frozenset()) for row in plan.rows)
        (results,) = super().submit(replace(plan, rows=rows))
        self.ended &= {row.slot for row in plan.rows if row.follows}
        told = tuple(
            RowResult(ran=False) if row.slot in self.ended else result
            for row, result in zip(plan.rows, results, strict=True)
        )
        self.ended |= {
            row.slot
            for row, result in zip(plan.rows, told, strict=True)
            if result.token in row.stops
        }
        return told


async def test_a_stop_that_is_not_masked_is_told_apart(worlds: Callable[..., Any]) -> None:
    bad, plain = await worlds(guest_type=Unmasked), await worlds()
    said = []
    for world in (bad, plain):
        views = []
        # of several, since the last step that is given before one is looked at may be the stop
        for seed in range(1, 5):
            await world.create(f"a{seed}", seed=seed)
            views.append(await world.say(f"a{seed}", **CASES["stop token"]))
        said.append(views)
    assert [view.token_ids for view in said[0]] == [view.token_ids for view in said[1]]
    assert all(view.finish is FinishReason.STOP for view in said[0])
    assert rows_of(bad) != rows_of(plain)


async def test_what_was_launched_before_a_cancel_is_committed(pair: Any) -> None:
    ahead, plain = pair
    for world in pair:
        await world.create("a")
    stream = await ahead.visor.generate(Generate(actor="a", max_tokens=200, settings=HOT))
    async for event in stream:
        if event.index == 5:
            stream.cancel()
            break
    view = await stream.result()
    assert view.finish is FinishReason.CANCELLED
    assert len(view.token_ids) > 5
    rest = await ahead.say("a", max_tokens=9)
    more = await ahead.say("a", max_tokens=9)
    whole = await plain.say("a", max_tokens=len(view.token_ids) + 18)
    assert view.token_ids + rest.token_ids + more.token_ids == whole.token_ids
    assert rows_of(ahead) == rows_of(plain)


@pytest.mark.parametrize("failing", ["submit", "collect"])
async def test_a_step_that_breaks_fails_its_rows_and_loses_nothing(pair: Any, failing: str) -> None:
    ahead, plain = pair
    for world in pair:
        await world.create("a")
    sound, calls = getattr(ahead.guest, failing), iter(range(100))

    def breaks(given: Any) -> Any:
        if next(calls) == 3:
            raise RuntimeError("device lost")
        return sound(given)

    setattr(ahead.guest, failing, breaks)
    view = await ahead.say("a", max_tokens=20)
    assert (view.finish, view.error) == (FinishReason.ERROR, "internal")
    assert 0 < len(view.token_ids) < 20
    rest = await ahead.say("a", max_tokens=20 - len(view.token_ids))
    whole = await plain.say("a", max_tokens=20)
    assert view.token_ids + rest.token_ids == whole.token_ids


async def test_a_row_that_is_not_finite_ends_alone(pair: Any) -> None:
    told = []
    for world in pair:
        await world.create("good")
        await world.create("bad")
        good = asyncio.create_task(world.say("good", max_tokens=30))
        append = Append(actor="bad", prompt=(65, POISON, *[66] * 100))
        view = await world.visor.append(append)
        told.append((view.finish, view.error, (await good).token_ids))
        with pytest.raises(ActorQuarantined):
            await world.say("bad")
    assert told[0] == told[1]
    assert told[0][1] == ActorQuarantined.code


class Sick(Ahead):
    """The row of the first slot is not finite from one of its steps on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sound = 1 << 30  #: steps that the row has left

    def _row(self, slot: int, tokens: Any, draw: Any) -> Any:
        result = super()._row(slot, tokens, draw)
        if slot == 1:
            self.sound -= 1
        return result if slot != 1 or self.sound >= 0 else RowResult(finite=False)


async def test_a_row_that_goes_bad_while_steps_go_on_is_given_no_more(
    worlds: Callable[..., Any],
) -> None:
    """Its slot is let go when all that was given is back, also what nobody has looked at yet."""
    sick, plain = await worlds(guest_type=Sick), await worlds()
    for world in (sick, plain):
        for name in ("bad", "good"):
            await world.create(name, seed=1)
            await world.say(name, max_tokens=2)
    turns = [asyncio.create_task(sick.say(name, max_tokens=90)) for name in ("bad", "good")]
    loop = sick.visor._batchers["toy"].loop
    runway, close = loop._runway, loop._close

    def slowly(member: Any) -> None:
        close(member)
        time.sleep(0.05)  # in which more could be given

    loop._close = slowly
    for _ in range(100_000):
        if runway._going is not None and len(runway._going.plan.rows) == 2:
            break
        await asyncio.sleep(0)
    sick.guest.sound = 5
    for _ in range(2000):
        if runway._steps == MOST_UNTOLD and not runway._out:
            break
        time.sleep(0.01)  # noqa: ASYNC251 - nothing else may run
    bad, good = await asyncio.wait_for(asyncio.gather(*turns), 20)
    assert (bad.finish, bad.error) == (FinishReason.ERROR, ActorQuarantined.code)
    assert good.token_ids == (await plain.say("good", max_tokens=90)).token_ids
    bad_state = list(sick.guest._bank[1])
    await sick.say("good", max_tokens=20)
    assert sick.guest._bank[1] == bad_state


async def test_images_are_taken_at_their_step_with_nothing_on_its_way(
    worlds: Callable[..., Any],
) -> None:
    images = []
    for guest_type in (Ahead, ToyGuest):
        world = await worlds(
            guest_type=guest_type, config={"step_tokens": 4, "checkpoint_tokens": 10}
        )
        await world.create("a", "a long story " * 20)
        await world.say("a", max_tokens=60)
        await world.crash()
        images.append((await world.say("a", max_tokens=20)).token_ids)
    assert images[0] == images[1]


class SlowCopy(Ahead):
    """A copy of a slot to the host takes until it is let go."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.copying, self.go = threading.Event(), threading.Event()
        self.go.set()

    def save(self, slot: int, out: memoryview, start: int | None = None) -> None:
        self.copying.set()
        assert self.go.wait(20)
        super().save(slot, out, start)


async def test_others_go_on_while_a_slot_is_copied(worlds: Callable[..., Any]) -> None:
    config = {"step_tokens": 4, "checkpoint_tokens": 10}
    slow = await worlds(guest_type=SlowCopy, config=config)
    plain = await worlds(config=config)
    for world in (slow, plain):
        await world.create("a", "a long story " * 20)
        await world.create("b", None)
    slow.guest.go.clear()
    slow.guest.copying.clear()
    held = asyncio.create_task(slow.say("a", max_tokens=60))
    assert await asyncio.to_thread(slow.guest.copying.wait, 20)
    beside = await slow.say("b", max_tokens=5, settings=HOT)
    assert not held.done()
    slow.guest.go.set()
    told = [await held, beside]
    wanted = [
        await plain.say("a", max_tokens=60),
        await plain.say("b", max_tokens=5, settings=HOT),
    ]
    assert [view.token_ids for view in told] == [view.token_ids for view in wanted]
    assert rows_of(slow) == rows_of(plain)


class BadCopy(Ahead):
    """Slots cannot be copied to the host."""

    def save(self, slot: int, out: memoryview, start: int | None = None) -> None:
        raise RuntimeError("device lost")


async def test_a_copy_that_breaks_fails_its_actor_alone(worlds: Callable[..., Any]) -> None:
    world = await worlds(guest_type=BadCopy, config={"step_tokens": 4, "checkpoint_tokens": 10})
    await world.create("a", "a long story " * 20)
    await world.create("b", None)
    beside = asyncio.create_task(world.say("b", max_tokens=5))
    view = await world.say("a", max_tokens=60)
    assert (view.finish, view.error) == (FinishReason.ERROR, "internal")
    assert len((await beside).token_ids) == 5


async def test_a_long_prompt_leaves_those_who_decode_their_pace(worlds: Callable[..., Any]) -> None:
    world = await worlds(guest_type=Ahead, config={"step_tokens": 4096})
    world.guest.step_tokens = 4096
    world.visor._batchers["toy"].loop._budget = Budget(4096)
    for name in "ab":
        await world.create(name, None)
    await asyncio.gather(world.say("b", max_tokens=200), world.append("a", "x" * 1000))
    mixed = [plan.rows for plan in world.guest.plans if len(plan.rows) == 2]
    assert mixed
    assert max(len(row.tokens) for rows in mixed for row in rows) <= 512


class SlowStep(ToyGuest):
    """A step takes until it is let go, and keeps the engine's thread for so long."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.stepping, self.go = threading.Event(), threading.Event()
        self.go.set()

    def step(self, plan: Any) -> Any:
        self.stepping.set()
        assert self.go.wait(20)
        return super().step(plan)


async def test_a_copy_that_waits_is_of_whom_it_was_asked_for(worlds: Callable[..., Any]) -> None:
    """Its source leaves the slot, and another comes there, while the copy waits for a step."""
    world, plain = await worlds(guest_type=SlowStep, slots=3), await worlds(slots=3)
    for each in (world, plain):
        for name in ("z", "t", "busy"):
            await each.create(name, f"the story of {name}", seed=1)
        await each.say("z", max_tokens=3)
        await each.visor.hibernate(Hibernate(actor="z", tier=Tier.HOST))
        await each.say("t", max_tokens=3)
        await each.visor.fork(Fork(actor="t", names=("x",), rng=Rng.INHERIT))
    world.guest.stepping.clear()
    world.guest.go.clear()
    busy = asyncio.create_task(world.say("busy", max_tokens=5))
    assert await asyncio.to_thread(world.guest.stepping.wait, 20)
    copied = asyncio.create_task(world.say("x", max_tokens=9))
    await asyncio.sleep(0.05)
    # the third slot is x's: z needs that of t, which rests
    loaded = asyncio.create_task(world.say("z", max_tokens=9))
    await asyncio.sleep(0.05)
    world.guest.go.set()
    await busy
    told = [(await copied).token_ids, (await loaded).token_ids]
    assert told[0] == (await plain.say("x", max_tokens=9)).token_ids
    assert told[1] == (await plain.say("z", max_tokens=9)).token_ids
