"""How a turn is run and closed.

What is on disk between the steps: nothing before `begin_turn`; the prompt and an open turn after
it; a longer and longer journal while it runs; a version once `end_turn` has committed. A crash
anywhere leaves an open turn, which recovery closes at its last committed token. So does a disk
without room for the end; then the actor's next turn closes it first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Any

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.batcher import Batcher
from statevisor.hypervisor.catalog_port import Catalog, Guard
from statevisor.hypervisor.commands import TurnView
from statevisor.hypervisor.endings import Endings
from statevisor.hypervisor.errors import ActorQuarantined, StatevisorError
from statevisor.hypervisor.feed import NotFinite
from statevisor.hypervisor.gate import OutputGate
from statevisor.hypervisor.goal import Goal
from statevisor.hypervisor.openings import Opening, Openings
from statevisor.hypervisor.ports import Clock
from statevisor.hypervisor.records import TurnRecord
from statevisor.hypervisor.residents import NOT_FINITE
from statevisor.hypervisor.said import Said
from statevisor.hypervisor.stream import TurnStream
from statevisor.hypervisor.tasks import Tasks
from statevisor.hypervisor.turn import Turn
from statevisor.hypervisor.vocab import FinishReason


class Turns:
    """Runs turns of resident actors; the caller holds the actor's mailbox."""

    def __init__(self, catalog: Catalog, gate: OutputGate, tasks: Tasks, clock: Clock) -> None:
        self._gate = gate
        self._tasks = tasks
        self._clock = clock
        self._said = Said(catalog)
        self._endings = Endings(catalog)
        self._openings = Openings(
            catalog=catalog,
            gate=gate,
            said=self._said,
            endings=self._endings,
            tasks=tasks,
            clock=clock,
        )

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
        began = self._clock.monotonic()
        await self._endings.settle(actor)
        opening = Opening(
            actor=actor,
            batcher=batcher,
            stream=stream,
            goal=goal,
            prompt=prompt,
            guard=guard,
            carried=carried,
            began=began,
        )
        turn, record = await self._openings.begin(opening)
        if not opened.done():
            opened.set_result(None)
        error = await turn.ended
        await self._tasks.few()
        keyed = guard.once is not None
        view = await self._close(actor, batcher, stream, turn, record, error, keyed=keyed)
        if last := view.token_ids[-1:] or tuple(prompt[-1:]):
            actor.ends_with(last[0])
        return view

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
        try:
            await self._endings.end(
                actor,
                turn.id,
                finish=finish,
                position=position,
                text=view.text,
                result=turn_result(view) if keyed else None,
            )
        except BaseException:
            batcher.residency.settle(actor, failed=True)
            raise
        finally:
            actor.turn = None
        await self._let_go(actor, batcher, error, failed)
        actor.used = self._clock.monotonic()
        return view

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


def _code(error: Exception | None, failed: StatevisorError | None) -> str | None:
    """What ended a turn: the step of its row, or else its journal."""
    if isinstance(error, NotFinite):
        return ActorQuarantined.code
    if failed is not None:
        return failed.code
    return StatevisorError.code if error is not None else None


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
