"""Appends and generates: from a command to a stream of committed tokens."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.batcher import Batcher
from statevisor.hypervisor.catalog_port import Catalog, Once
from statevisor.hypervisor.commands import (
    Append,
    CancelTurn,
    Change,
    Generate,
    Prompt,
    TurnView,
)
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.errors import (
    ActorBusy,
    IdempotencyMismatch,
    InvalidRequest,
    InvalidTransition,
    StatevisorError,
)
from statevisor.hypervisor.goal import Goal, goal_from
from statevisor.hypervisor.ids import Ids
from statevisor.hypervisor.lifecycle import Power
from statevisor.hypervisor.ports import Clock, Meter
from statevisor.hypervisor.records import TurnRecord
from statevisor.hypervisor.replies import revive_turn
from statevisor.hypervisor.roster import Roster
from statevisor.hypervisor.sampling import PenaltyCounts, SamplerSettings
from statevisor.hypervisor.stream import TurnStream
from statevisor.hypervisor.tasks import Tasks
from statevisor.hypervisor.turn import Turn
from statevisor.hypervisor.turns import Turns
from statevisor.hypervisor.vocab import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One append or generate on its way."""

    change: Change
    key: str
    prompt: Prompt | None
    generate: Generate | None
    earlier: TurnRecord | None  #: the broken turn of the same Idempotency-Key


class Conversations:
    """Opens turns, one at a time per actor, and sees them through."""

    def __init__(
        self,
        *,
        roster: Roster,
        turns: Turns,
        tasks: Tasks,
        catalog: Catalog,
        ids: Ids,
        config: VisorConfig,
        clock: Clock,
        meter: Meter,
    ) -> None:
        self._roster = roster
        self._turns = turns
        self._tasks = tasks
        self._catalog = catalog
        self._ids = ids
        self._config = config
        self._clock = clock
        self._meter = meter

    async def append(self, command: Append) -> TurnView:
        """Absorb a prompt; nothing is sampled."""
        stream = await self._open(command, command.actor, command.prompt, None)
        return await stream.result()

    async def generate(self, command: Generate) -> TurnStream:
        """Open a turn; its tokens are read from the stream as they are committed."""
        return await self._open(command, command.actor, command.prompt, command)

    async def _open(
        self, change: Change, key: str, prompt: Prompt | None, generate: Generate | None
    ) -> TurnStream:
        self._roster.accepting()
        earlier = await self._earlier(change.once)
        if isinstance(earlier, TurnStream):
            return earlier
        stream = TurnStream(self._ids.new("turn"))
        ask = Ask(change=change, key=key, prompt=prompt, generate=generate, earlier=earlier)
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks.spawn(self._converse(stream, opened, ask))
        try:
            await asyncio.shield(opened)
        except asyncio.CancelledError:
            stream.cancel()
            raise
        return stream

    async def _earlier(self, once: Once | None) -> TurnRecord | TurnStream | None:
        """What an Idempotency-Key began before: a broken turn to take up, or a finished one.

        Raises: IdempotencyMismatch, ActorBusy.
        """
        operation = None if once is None else await self._catalog.operation(once.key)
        if operation is None or once is None:
            return None
        if operation.request != once.request or operation.turn_id is None:
            raise IdempotencyMismatch
        turn = await self._catalog.turn(operation.turn_id)
        if operation.result is not None:
            return await self._tell_again(turn, revive_turn(operation.result))
        if turn.finish is None:
            raise ActorBusy("the turn of this Idempotency-Key still runs")
        return turn

    async def _tell_again(self, turn: TurnRecord, view: TurnView) -> TurnStream:
        """The stream of a turn that has ended before."""
        stream = TurnStream(turn.id)
        record = await self._catalog.actor(turn.actor_id)
        again = Turn(
            id=turn.id,
            slot=0,
            goal=goal_from(turn.settings),
            gap=(),
            position=turn.start + turn.prompt_tokens,
            counts=PenaltyCounts(settings=SamplerSettings()),
            tokenizer=self._roster.batcher(record).guest.tokenizer,
            push=lambda turn, events: None,
        )
        stream.put(again.replayed(view.token_ids))
        stream.end(view)
        return stream

    async def _converse(self, stream: TurnStream, opened: asyncio.Future[None], ask: Ask) -> None:
        """One turn from request to result; every ending reaches the stream."""
        try:
            stream.end(await self._run(stream, opened, ask))
        except StatevisorError as error:
            _failed(stream, opened, error)
        except BaseException as error:
            _failed(stream, opened, error)
            raise
        if not opened.done():
            opened.set_result(None)

    async def _run(self, stream: TurnStream, opened: asyncio.Future[None], ask: Ask) -> TurnView:
        actor = await self._roster.find(ask.key)
        batcher = self._roster.batcher(actor.record)
        actor.turns[stream.turn_id] = stream
        try:
            if not await _enter(actor, stream):
                return self._unstarted(actor, stream)
            if ask.generate is not None and not ask.generate.commit:
                goal, prompt = self._goal(actor, batcher, ask)
                return await self._turns.throw_away(actor, batcher, stream, goal, prompt, opened)
            try:
                return await self._committed_turn(stream, opened, actor, batcher, ask)
            finally:
                actor.mailbox.leave()
                batcher.residency.wake()
        finally:
            actor.turns.pop(stream.turn_id, None)

    async def _committed_turn(
        self,
        stream: TurnStream,
        opened: asyncio.Future[None],
        actor: Actor,
        batcher: Batcher,
        ask: Ask,
    ) -> TurnView:
        """A turn that is journalled; the actor's mailbox is held."""
        guard = self._roster.guard(actor, ask.change)
        earlier = ask.earlier
        if earlier is None:
            goal, prompt = self._goal(actor, batcher, ask)
        elif (actor.segment, actor.record.position) == (earlier.segment, earlier.position):
            goal, prompt = goal_from(earlier.settings), ()
        else:
            raise InvalidRequest(
                "a crash cut this turn short and the actor has moved on since",
                hint="Its committed tokens are in the transcript; use a new Idempotency-Key.",
            )
        began = self._clock.monotonic()
        view = await self._turns.run(
            actor, batcher, stream, goal, prompt, guard, opened, carried=earlier
        )
        self._count(view, ask, self._clock.monotonic() - began)
        await self._checkpoint(actor, batcher)
        return view

    def _count(self, view: TurnView, ask: Ask, seconds: float) -> None:
        self._meter.count("prompt_tokens_total", view.prompt_tokens)
        self._meter.count("generation_tokens_total", len(view.token_ids))
        if ask.generate is not None:
            self._meter.count("request_success_total", 1, finish_reason=view.finish.value)
            self._meter.observe("e2e_request_latency_seconds", seconds)

    async def _checkpoint(self, actor: Actor, batcher: Batcher) -> None:
        """Bound what a crash would have to replay: the copy is made now, written beside."""
        residency = batcher.residency
        tokens = actor.record.position - actor.imaged
        if actor.power is not Power.IDLE or not residency.states.checkpoints.due(tokens):
            return
        # a cancelled prompt leaves more pending: the image is that of the place reached
        segment, position, absorbed = actor.segment, actor.absorbed + 1, actor.absorbed
        row = await residency.row(actor)
        self._tasks.spawn(residency.states.cache(actor, segment, position, row, absorbed))

    def _goal(self, actor: Actor, batcher: Batcher, ask: Ask) -> tuple[Goal, tuple[int, ...]]:
        """What the turn is to do, and its prompt as tokens. Raises: InvalidRequest."""
        position = actor.record.position
        tokens = self._roster.encode(batcher, ask.prompt, first=position == 0)
        command = ask.generate
        if command is None:
            if not tokens:
                raise InvalidRequest("an append needs at least one token")
            return Goal(seed=actor.record.seed), tokens
        if not tokens and position == 0:
            raise InvalidRequest(
                "the actor is empty and this model has no token to begin with",
                hint="Give a prompt.",
            )
        if not 1 <= command.max_tokens <= self._config.max_tokens:
            raise InvalidRequest(f"max_tokens must be in 1..{self._config.max_tokens}")
        self._roster.check_tokens(batcher, command.stop_token_ids)
        eos = frozenset() if command.ignore_eos else batcher.guest.tokenizer.eos
        goal = Goal(
            settings=command.settings,
            seed=actor.record.seed if command.seed is None else command.seed,
            max_tokens=command.max_tokens,
            stop=command.stop,
            stop_ids=frozenset(command.stop_token_ids) | eos,
        )
        return goal, tokens

    def _unstarted(self, actor: Actor, stream: TurnStream) -> TurnView:
        """A turn that was cancelled while it waited: nothing happened."""
        record = actor.record
        return TurnView(
            id=stream.turn_id,
            actor=record.name,
            text="",
            token_ids=(),
            finish=FinishReason.CANCELLED,
            position=record.position,
            durable_position=record.position,
            generation=record.generation,
            prompt_tokens=0,
        )

    async def cancel(self, command: CancelTurn) -> str:
        """End a turn at its last committed token; returns its id. Raises: InvalidTransition."""
        actor = await self._roster.find(command.actor)
        turn = self.cancel_turns(actor, command.turn)
        if turn is None:
            raise InvalidTransition(
                "no such turn waits or runs", hint="It may have ended; read the transcript."
            )
        return turn

    def cancel_turns(self, actor: Actor, turn: str | None) -> str | None:
        """Cancel one turn, or all that wait or run; returns the id of the first."""
        keys = [key for key in actor.turns if turn in (None, key)]
        for key in keys:
            actor.turns[key].cancel()
        return keys[0] if keys else None


def _failed(stream: TurnStream, opened: asyncio.Future[None], error: BaseException) -> None:
    stream.fail(error)
    if not opened.done():
        opened.set_exception(error)
        opened.exception()  # whoever asked may have gone: nobody has to hear of it


async def _enter(actor: Actor, stream: TurnStream) -> bool:
    """Wait for the actor's mailbox; False if the turn was cancelled while it waited."""
    if actor.mailbox.try_enter():
        return True
    waiting = asyncio.ensure_future(actor.mailbox.enter())
    stream.on_cancel(waiting.cancel)
    try:
        await waiting
    except asyncio.CancelledError:
        if waiting.cancelled() and stream.cancelled:
            return False
        raise
    finally:
        stream.on_cancel(lambda: None)
    return True
