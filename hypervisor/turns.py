"""How a turn is opened, run and closed.

What is on disk between the steps: nothing before `begin_turn`; the prompt and an open turn after
it; a longer and longer journal while it runs; a version once `end_turn` has committed. A crash
anywhere leaves an open turn, which recovery closes at its last committed token. So does a disk
without room for the end; then the actor's next turn closes it first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from typing import Any

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.batcher import Batcher
from statevisor.hypervisor.catalog_port import Catalog, Guard
from statevisor.hypervisor.commands import TokenEvent, TurnView
from statevisor.hypervisor.errors import ActorQuarantined, StatevisorError, Unavailable
from statevisor.hypervisor.feed import NotFinite
from statevisor.hypervisor.gate import OutputGate
from statevisor.hypervisor.goal import Goal, goal_record
from statevisor.hypervisor.ports import Clock
from statevisor.hypervisor.records import ActorRecord, TurnRecord
from statevisor.hypervisor.residency import NOT_FINITE
from statevisor.hypervisor.said import Said
from statevisor.hypervisor.stream import TurnStream
from statevisor.hypervisor.tasks import Tasks
from statevisor.hypervisor.turn import Turn
from statevisor.hypervisor.turn_images import TurnImages
from statevisor.hypervisor.vocab import FinishReason


class Turns:
    """Runs turns of resident actors; the caller holds the actor's mailbox."""

    def __init__(self, catalog: Catalog, gate: OutputGate, tasks: Tasks, clock: Clock) -> None:
        self._catalog = catalog
        self._tasks = tasks
        self._gate = gate
        self._clock = clock
        self._said = Said(catalog)
        self._left: dict[str, Callable[[], Awaitable[ActorRecord]]] = {}

    async def run(
        self,
        actor: Actor,
        batcher: Batcher,
        stream: TurnStream,
        goal: Goal,
        prompt: Sequence[int],
        guard: Guard,
        opened: asyncio.Future[None],
        *,
        carried: TurnRecord | None = None,
    ) -> TurnView:
        """Open a turn, step it to its end, close it.

        `carried` is a broken attempt at the same turn: its prompt and tokens are in the transcript
        and its tokens are told again. Raises what kept it from being opened or recorded.
        """
        residency, began = batcher.residency, self._clock.monotonic()
        await self._close_left(actor)
        await residency.resume(actor)
        if carried is None:
            record = TurnRecord(
                id=stream.turn_id,
                actor_id=actor.id,
                segment=actor.segment,
                start=actor.record.position,
                prompt_tokens=len(prompt),
                settings=goal_record(goal),
                position=actor.record.position + len(prompt),
                created_at=self._clock.now_us(),
            )
        else:
            record = replace(
                carried, id=stream.turn_id, segment=actor.segment, finish=None, broken=False
            )
        gap = None if carried is not None else _known_gap(actor, prompt)
        actor.record = await self._catalog.begin_turn(record, prompt, guard=guard)
        if not opened.done():
            opened.set_result(None)
        turn = await self._turn(actor, batcher, stream, goal, record, began, gap)
        actor.turn = turn
        stream.on_cancel(turn.cancel)
        residency.begin(actor)
        batcher.loop.add(turn)
        error = await turn.ended
        keyed = guard.once is not None
        view = await self._close(actor, batcher, stream, turn, record, error, keyed=keyed)
        if last := view.token_ids[-1:] or tuple(prompt[-1:]):
            actor.ends_with(last[0])
        return view

    async def _turn(
        self,
        actor: Actor,
        batcher: Batcher,
        stream: TurnStream,
        goal: Goal,
        record: TurnRecord,
        began: float,
        gap: Sequence[int] | None,
    ) -> Turn:
        """The feed of an opened turn, with whatever a broken attempt has generated already."""
        residency, position = batcher.residency, actor.record.position
        begin = record.start + record.prompt_tokens
        told = await residency.states.tokens(actor.segment, begin, position)
        segment = actor.segment
        if gap is None:
            gap = await residency.states.tokens(segment, actor.absorbed, position)

        def push(turn: Turn, events: Sequence[TokenEvent]) -> None:
            self._gate.push(turn, segment, stream, events)

        turn = Turn(
            id=stream.turn_id,
            slot=_held(actor),
            goal=goal,
            gap=gap,
            position=begin,
            counts=await self._said.counts(actor, goal, begin, prompted=record.prompt_tokens > 0),
            tokenizer=batcher.guest.tokenizer,
            push=push,
            now=began,
            stage=TurnImages(self._tasks, residency, actor),
        )
        stream.put(turn.replayed(told))
        return turn

    async def _close(
        self,
        actor: Actor,
        batcher: Batcher,
        stream: TurnStream,
        turn: Turn,
        record: TurnRecord,
        error: Exception | None,
        *,
        keyed: bool,
    ) -> TurnView:
        actor.absorbed += turn.taken
        failed: StatevisorError | None = None
        try:
            await self._gate.settled(turn)
        except StatevisorError as fault:
            failed = fault
        turn.settled()
        finish = turn.finish or FinishReason.ERROR
        position = turn.position if failed is None else turn.committed
        finish = FinishReason.ERROR if failed is not None else finish
        view = _view(actor, turn, record, finish, position)
        view = replace(view, error=_code(error, failed))
        end = partial(
            self._catalog.end_turn,
            turn.id,
            finish=finish,
            position=position,
            text=view.text,
            result=turn_result(view) if keyed else None,
            guard=Guard(epoch=actor.record.epoch),
        )
        try:
            actor.record = await end()
        except BaseException as fault:
            batcher.residency.settle(actor, failed=True)
            if isinstance(fault, Unavailable):
                self._left[actor.id] = end
                actor.record = replace(actor.record, position=position)
            raise
        finally:
            actor.turn = None
        await self._let_go(actor, batcher, error, failed)
        actor.used = self._clock.monotonic()
        return view

    async def _close_left(self, actor: Actor) -> None:
        """Close the turn before, if the disk had no room for its end. Raises: Unavailable."""
        end = self._left.pop(actor.id, None)
        if end is not None:
            try:
                actor.record = await end()
            except Unavailable:
                self._left[actor.id] = end
                raise

    async def _let_go(
        self,
        actor: Actor,
        batcher: Batcher,
        error: Exception | None,
        failed: StatevisorError | None,
    ) -> None:
        if isinstance(error, NotFinite):
            await batcher.residency.poison(actor, NOT_FINITE)
        else:
            batcher.residency.settle(actor, failed=error is not None or failed is not None)

    async def throw_away(
        self,
        actor: Actor,
        batcher: Batcher,
        stream: TurnStream,
        goal: Goal,
        prompt: Sequence[int],
        opened: asyncio.Future[None],
    ) -> TurnView:
        """Run a turn on a copy of the actor's state; nothing is journalled or changed.

        Leaves the actor's mailbox as soon as the copy is made.
        """
        residency = batcher.residency
        with ExitStack() as held:
            held.callback(actor.mailbox.leave)
            await residency.resume(actor)
            async with residency.scratch(stream.turn_id) as slot:
                await residency.copy(actor, slot)
                record, position = actor.record, actor.record.position
                pending = await residency.states.tokens(actor.segment, actor.absorbed, position)
                turn = Turn(
                    id=stream.turn_id,
                    slot=slot,
                    goal=goal,
                    gap=[*pending, *prompt],
                    position=position + len(prompt),
                    counts=await self._said.counts(actor, goal, position, prompted=bool(prompt)),
                    tokenizer=batcher.guest.tokenizer,
                    push=lambda _, events: stream.put(events),
                )
                held.close()
                if not opened.done():
                    opened.set_result(None)
                stream.on_cancel(turn.cancel)
                batcher.loop.add(turn)
                error = await turn.ended
        view = TurnView(
            id=stream.turn_id,
            actor=record.name,
            text=turn.text,
            token_ids=tuple(turn.generated),
            finish=turn.finish or FinishReason.ERROR,
            position=position,
            durable_position=position,
            generation=record.generation,
            prompt_tokens=len(prompt),
            logprobs=tuple(turn.logprobs) if goal.settings.logprobs is not None else None,
        )
        if isinstance(error, NotFinite):
            return replace(view, error=ActorQuarantined.code)
        return replace(view, error=StatevisorError.code if error is not None else None)


def _known_gap(actor: Actor, prompt: Sequence[int]) -> Sequence[int] | None:
    """What is to be absorbed once the prompt is committed; None if only the journal knows."""
    if actor.absorbed == actor.record.position:
        return prompt
    if actor.absorbed == actor.rest and actor.last_token is not None:
        return (actor.last_token, *prompt)
    return None


def _code(error: Exception | None, failed: StatevisorError | None) -> str | None:
    """What ended a turn: the step of its row, or else its journal."""
    if isinstance(error, NotFinite):
        return ActorQuarantined.code
    if failed is not None:
        return failed.code
    return StatevisorError.code if error is not None else None


def _held(actor: Actor) -> int:
    assert actor.slot is not None, "a turn needs a slot"
    return actor.slot


def _view(
    actor: Actor, turn: Turn, record: TurnRecord, finish: FinishReason, position: int
) -> TurnView:
    wanted = record.settings.get("logprobs") is not None
    count = position - turn.start
    return TurnView(
        id=turn.id,
        actor=actor.record.name,
        text=turn.text,
        token_ids=tuple(turn.generated[:count]),
        finish=finish,
        position=position,
        durable_position=position,
        generation=actor.record.generation + 1,  # closing the turn is one more change
        prompt_tokens=record.prompt_tokens,
        logprobs=tuple(turn.logprobs[:count]) if wanted else None,
    )


def turn_result(view: TurnView) -> Mapping[str, Any]:
    """What an Idempotency-Key keeps of a turn: all of the view, as plain values."""
    # field by field: `asdict` would copy every token by itself
    return {
        **{part.name: getattr(view, part.name) for part in fields(view)},
        "token_ids": list(view.token_ids),
        "finish": view.finish.value,
        "logprobs": None
        if view.logprobs is None
        else [
            lp and {"chosen": lp.chosen, "top": [list(pair) for pair in lp.top]}
            for lp in view.logprobs
        ],
    }
