"""Many clients at once over a few actors and fewer slots, their calls cancelled at random.

Behind them every transcript is told again, one token at a time, on a guest of its own.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from statemodel.oracle import Ask, Event, Oracle, branch, empty, transcript
from statemodel.world import TwinWorld, World

from statevisor.hypervisor.commands import (
    Append,
    CreateActor,
    Evict,
    Fork,
    Generate,
    Hibernate,
    Mutate,
    Resume,
    Rollback,
    Snapshot,
    TurnView,
)
from statevisor.hypervisor.errors import (
    ActorBusy,
    ActorNotFound,
    InvalidRequest,
    InvalidTransition,
    NoFreeSlot,
)
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.vocab import Tier

#: What a client may meet because of others, and nothing else.
_FAIR = (ActorBusy, ActorNotFound, InvalidRequest, InvalidTransition, NoFreeSlot)
_HANGS_S = 60.0
_ROUND = 200  #: operations of one world


class Crowd:
    """One world, its clients, and what they were told."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world = world
        self.dice = dice
        self.told: list[TurnView] = []
        self.done = 0

    # -- one client ------------------------------------------------------------------------------
    async def client(self, count: int) -> None:
        for _ in range(count):
            self.world.clock.seconds += 0.1
            task = asyncio.ensure_future(self.operation())
            if self.dice.random() < 0.2:
                for _ in range(self.dice.randrange(30)):
                    await asyncio.sleep(0)
                task.cancel()
            (result,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(result, BaseException) and not isinstance(
                result, (*_FAIR, asyncio.CancelledError)
            ):
                raise result
            self.done += 1

    async def operation(self) -> None:
        dice, visor = self.dice, self.world.visor
        who = f"actor-{dice.randrange(4)}"
        match dice.randrange(12):
            case 0 | 1 | 2 | 3 | 4:
                await self.generate(who)
            case 5:
                prompt = tuple(dice.randrange(256) for _ in range(dice.randint(1, 30)))
                self.told.append(await visor.append(Append(actor=who, prompt=prompt)))
            case 6:
                record = (await visor.actor(who)).record
                await visor.rollback(Rollback(actor=who, to=dice.randint(1, record.position)))
            case 7:
                mutation = Mutation(rule="scale", params={"factor": dice.randint(2, 5)})
                await visor.mutate(Mutate(actor=who, mutation=mutation))
            case 8:
                await visor.snapshot(Snapshot(actor=who, wait=dice.random() < 0.3))
            case 9:
                (child,) = await visor.fork(Fork(actor=who))
                await self.generate(child.record.id)
            case 10:
                tier = dice.choice([Tier.HOST, Tier.NVME])
                await visor.hibernate(Hibernate(actor=who, tier=tier))
            case _:
                if dice.random() < 0.5:
                    await visor.evict(Evict(source=Tier.GPU, target=Tier.NVME, count=1))
                else:
                    await visor.resume(Resume(actor=who))

    async def generate(self, who: str) -> None:
        dice = self.dice
        prompt = tuple(dice.randrange(256) for _ in range(dice.randrange(20))) or None
        stream = await self.world.visor.generate(
            Generate(
                actor=who,
                prompt=prompt,
                max_tokens=dice.randint(1, 20),
                settings=SamplerSettings(
                    temperature=dice.choice([0.0, 1.0]),
                    frequency_penalty=dice.choice([0.0, 0.5]),
                    penalty_decay=0.9,
                ),
                commit=dice.random() < 0.9,
                ignore_eos=dice.random() < 0.5,
            )
        )
        leave = dice.choice([None, None, 0, 3])
        if leave == 0:
            stream.cancel()
        count = 0
        async for _ in stream:
            count += 1
            if count == leave:
                stream.cancel()
        view = await stream.result()
        assert count == len(view.token_ids)
        self.told.append(view)

    # -- behind them -----------------------------------------------------------------------------
    async def check(self) -> None:
        """Nothing is lost, and everything follows from what was asked for."""
        await self.world.quiet()
        residency = self.world.residency
        residency.check()
        residency.frames.check()
        self.world.images.check()
        held = [one for one in residency.actors.values() if one.slot is not None]
        assert residency.slots.capacity - residency.slots.free == len(held), "a slot is lost"
        framed = [one for one in residency.actors.values() if residency.frames.get(one.id)]
        assert residency.frames.used == len(framed), "a frame is lost"
        live = await self.world.catalog.live_images()
        # two who write the same state at once leave one of both images to the collector
        assert self.world.images.used_bytes >= sum(one.length for one in live)
        replay = Replay(self.world.catalog._catalog)
        for record in [one.record for one in replay.catalog._actors.values()]:
            view = await self.world.visor.actor(record.id)
            assert view.record == await self.world.catalog.actor(record.id)
            assert view.status in ("idle", "hibernated")
            shown = await self.world.visor.transcript(record.id)
            event = replay.segment(record.segment)
            while event.position > record.position:
                assert event.parent is not None
                event = event.parent
            tokens = tuple(token for token, _ in transcript(event))
            assert shown.token_ids == tokens, f"{record.name}: another transcript"
            actor = residency.actors.get(record.id)
            if actor is not None and actor.slot is not None:
                _rests(self.world.row(actor.slot), event, actor.absorbed, record.name)
        replay.acknowledged(self.told)


def _rests(row: bytes, event: Event, absorbed: int, name: str) -> None:
    for one in event.back():
        if max(one.position - 1, 0) <= absorbed:
            assert row == one.row, f"{name}: other bytes in its slot"
            return


class Replay:
    """Every journal of a catalog told again by the oracle, turn by turn."""

    def __init__(self, catalog: Any) -> None:
        self.catalog = catalog
        self._oracle = Oracle()
        self._known: dict[int, Event] = {}

    def segment(self, number: int) -> Event:
        """The history at the end of a segment."""
        if number in self._known:
            return self._known[number]
        history = self.catalog._history
        record = history.segment(number)
        if record.parent is None:
            here = empty(None)
        else:
            here = self.segment(record.parent)
            while here.position > record.position:
                assert here.parent is not None
                here = here.parent
        if record.rooted:
            here = self._mutated(here, number)
        elif record.parent is not None:
            here = branch(here, None)
        turns = sorted(
            (turn for turn in self.catalog._turns.values() if turn.segment == number),
            key=lambda turn: (turn.start, turn.created_at, turn.id),
        )
        tokens = {
            at + index: token
            for at, _, run in history.runs[number]
            for index, token in enumerate(run)
        }
        first = min([turn.start for turn in turns], default=history.end(number))
        here = self._oracle.say(here, [tokens[p] for p in range(here.position, first)], None)
        for turn in turns:
            here = self._turn(here, turn, tokens)
        assert here.position == history.end(number), f"segment {number} holds other tokens"
        self._known[number] = here
        return here

    def _mutated(self, here: Event, number: int) -> Event:
        (made,) = [
            one
            for one in self.catalog._history.versions.values()
            if one.segment == number and one.op.value == "mutate"
        ]
        mutation = Mutation(rule=made.why["rule"], params=made.why["params"])
        row = self._oracle.mutate(mutation, [here.row])
        return Event("rule", here, here.position, here.base, row, here.pending, None)

    def _turn(self, here: Event, turn: Any, tokens: dict[int, int]) -> Event:
        assert turn.finish is not None, "a turn is left open"
        assert turn.start == here.position
        begun = turn.start + turn.prompt_tokens
        here = self._oracle.say(here, [tokens[p] for p in range(turn.start, begun)], None)
        wish = dict(turn.settings)
        seed, most = wish.pop("seed"), wish.pop("max_tokens")
        ends = {"stop": tuple(wish.pop("stop")), "stop_ids": frozenset(wish.pop("stop_ids"))}
        ask = Ask(max_tokens=most, settings=SamplerSettings(**wish), seed=seed, **ends)
        answer = self._oracle.answer(here, ask)
        drawn = tuple(tokens[p] for p in range(begun, turn.position))
        assert drawn == answer.tokens[: len(drawn)], f"{turn.id} drew other tokens"
        if turn.finish.value != "cancelled" and most:
            assert len(drawn) == len(answer.tokens), f"{turn.id} ended early"
        return self._oracle.say(here, drawn, None, generated=True)

    def acknowledged(self, told: list[TurnView]) -> None:
        """Whatever a client was told is in the catalog."""
        for view in told:
            turn = self.catalog._turns.get(view.id)
            if turn is None:
                # thrown away, or cancelled before it began
                continue
            assert (turn.position, turn.finish) == (view.position, view.finish)
            assert turn.start + turn.prompt_tokens + len(view.token_ids) == view.position


async def _round(number: int, operations: int) -> int:
    dice = random.Random(number)
    world = TwinWorld(
        slots=dice.randint(2, 4),
        frames=dice.randint(0, 2),
        lag=dice.choice([0, 2]),
        config={
            "slot_wait_s": 5.0,
            "step_tokens": dice.choice([4, 64]),
            "checkpoint_tokens": dice.choice([8, 4096]),
            "actors_in_memory": dice.choice([3, 10_000]),
        },
    )
    await world.start()
    crowd = Crowd(world, dice)
    try:
        for index in range(4):
            command = CreateActor(name=f"actor-{index}", prompt=(index, 7), seed=index)
            await world.visor.create(command)
        clients = dice.randint(2, 12)
        async with asyncio.timeout(_HANGS_S):
            await asyncio.gather(*(crowd.client(operations // clients) for _ in range(clients)))
        await crowd.check()
    finally:
        await world.leave()
    return crowd.done


def throng(operations: int, number: int) -> int:
    """Run about so many operations in worlds of their own; returns how many were done."""
    done = 0
    while done < operations:
        done += asyncio.run(_round(number * 1_000_003 + done, _ROUND))
    return done
