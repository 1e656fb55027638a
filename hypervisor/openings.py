"""How a turn begins: in its slot, in the step loop, in the journal.

The steps wait neither for the disk nor for a state that is on its way from host memory: they begin
while the state is checked and `begin_turn` commits, and what they draw waits behind a door until
both are done. If the turn is refused after all, or the state is damaged, the slot holds what it
should not, and is freed; nothing was told. Where a refusal is to be expected, and where an earlier
attempt is carried on, the turn is committed first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.arrival import Arrival
from statevisor.hypervisor.batcher import Batcher
from statevisor.hypervisor.catalog_port import Catalog, Guard
from statevisor.hypervisor.door import Door
from statevisor.hypervisor.endings import Endings
from statevisor.hypervisor.gate import OutputGate
from statevisor.hypervisor.goal import Goal, goal_record
from statevisor.hypervisor.ports import Clock
from statevisor.hypervisor.records import TurnRecord
from statevisor.hypervisor.residency import Residency
from statevisor.hypervisor.said import Said
from statevisor.hypervisor.stream import TurnStream
from statevisor.hypervisor.tasks import Tasks
from statevisor.hypervisor.turn import Turn
from statevisor.hypervisor.turn_images import TurnImages
from statevisor.hypervisor.vocab import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A turn that is to begin; the actor's mailbox is held."""

    actor: Actor
    batcher: Batcher
    stream: TurnStream
    goal: Goal
    prompt: Sequence[int]
    guard: Guard
    carried: TurnRecord | None  #: a broken attempt, whose prompt is in the transcript
    began: float  #: of the monotonic clock

    @property
    def residency(self) -> Residency:
        return self.batcher.residency


class Openings:
    """Lets turns begin."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        gate: OutputGate,
        said: Said,
        endings: Endings,
        tasks: Tasks,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._gate = gate
        self._said = said
        self._endings = endings
        self._tasks = tasks
        self._clock = clock
        self._refused = False  #: a turn whose steps had begun; none has been committed since

    async def begin(self, opening: Opening) -> tuple[Turn, TurnRecord]:
        """The running turn, committed, and its row. Raises what kept it from being opened."""
        guard = opening.guard
        conditional = guard.once is not None or guard.generation is not None
        if not (conditional or self._refused or opening.carried is not None):
            return await self._beside(opening)
        return await self._before(opening)

    async def _before(self, opening: Opening) -> tuple[Turn, TurnRecord]:
        """Commit the beginning of a turn, then step it."""
        actor, residency = opening.actor, opening.residency
        await residency.resume(actor)
        record = self._record(opening)
        turn, door = await self._turn(opening, record, opening.prompt)
        told = await residency.states.tokens(actor.segment, turn.start, actor.record.position)
        await self._commit(opening, record)
        residency.begin(actor)
        if told:
            opening.stream.put(turn.replayed(told))
        _open(opening, turn, door)
        _step(opening, turn)
        return turn, record

    async def _beside(self, opening: Opening) -> tuple[Turn, TurnRecord]:
        """Step a turn while its state is checked and its beginning committed.

        The steps are handed to the engine behind the copy into the slot. What is on disk if the
        process dies in here is nothing, or the prompt and an open turn.
        """
        actor, residency = opening.actor, opening.residency
        arrival = await residency.summon(actor)
        record = self._record(opening)
        try:
            turn, door = await self._turn(opening, record, opening.prompt)
        except Exception:
            if arrival is not None:  # nobody else waits for it
                await residency.land(actor, arrival)
            raise
        if arrival is None:
            residency.begin(actor)
        _step(opening, turn)
        try:
            await self._commit(opening, record)
        except Exception:
            self._refused = True
            await _undo(opening, turn)
            raise
        if arrival is not None:
            try:
                turn, door = await self._landed(opening, record, arrival, turn, door)
            except Exception:
                await self._endings.end(
                    actor, turn.id, finish=FinishReason.ERROR, position=record.position
                )
                raise
        _open(opening, turn, door)
        return turn, record

    async def _landed(
        self, opening: Opening, record: TurnRecord, arrival: Arrival, turn: Turn, door: Door
    ) -> tuple[Turn, Door]:
        """The turn, if its state was sound; if not, it runs again on what the journal makes."""
        actor, residency = opening.actor, opening.residency
        try:
            sound = await residency.arrived(actor, arrival)
        except Exception:
            await _undo(opening, turn)
            raise
        if sound:
            residency.begin(actor)
            return turn, door
        await _undo(opening, turn)
        await residency.resume(actor)
        turn, door = await self._turn(opening, record, ())
        residency.begin(actor)
        _step(opening, turn)
        return turn, door

    async def _commit(self, opening: Opening, record: TurnRecord) -> None:
        actor = opening.actor
        actor.record = await self._catalog.begin_turn(record, opening.prompt, guard=opening.guard)
        self._refused = False

    def _record(self, opening: Opening) -> TurnRecord:
        actor, turn_id = opening.actor, opening.stream.turn_id
        if opening.carried is not None:
            fresh = replace(opening.carried, id=turn_id, segment=actor.segment)
            return replace(fresh, finish=None, broken=False)
        return TurnRecord(
            id=turn_id,
            actor_id=actor.id,
            segment=actor.segment,
            start=actor.record.position,
            prompt_tokens=len(opening.prompt),
            settings=goal_record(opening.goal),
            position=actor.record.position + len(opening.prompt),
            created_at=self._clock.now_us(),
        )

    async def _turn(
        self, opening: Opening, record: TurnRecord, prompt: Sequence[int]
    ) -> tuple[Turn, Door]:
        """The feed of a turn behind the transcript and what is added to it, and its way out."""
        actor, goal = opening.actor, opening.goal
        assert actor.slot is not None, "a turn needs a slot"
        begin = record.start + record.prompt_tokens
        door = Door(self._gate, actor.segment, opening.stream)
        turn = Turn(
            id=record.id,
            slot=actor.slot,
            goal=goal,
            gap=(*await _pending(opening), *prompt),
            position=begin,
            committed=actor.record.position,
            counts=await self._said.counts(actor, goal, begin, prompted=record.prompt_tokens > 0),
            tokenizer=opening.batcher.guest.tokenizer,
            push=door.push,
            now=opening.began,
            stage=TurnImages(self._tasks, opening.residency, actor),
        )
        return turn, door


async def _pending(opening: Opening) -> Sequence[int]:
    """Tokens of the transcript that the slot has not taken in."""
    actor, states = opening.actor, opening.residency.states
    if actor.absorbed == actor.rest and actor.last_token is not None:
        return (actor.last_token,)
    return await states.tokens(actor.segment, actor.absorbed, actor.record.position)


def _step(opening: Opening, turn: Turn) -> None:
    opening.stream.on_cancel(turn.cancel)
    opening.batcher.loop.add(turn)


def _open(opening: Opening, turn: Turn, door: Door) -> None:
    """The turn is committed: others may see it, and its tokens leave."""
    turn.committed = opening.actor.record.position
    opening.actor.turn = turn
    door.open(turn)


async def _undo(opening: Opening, turn: Turn) -> None:
    """Take a turn out of the loop; its slot has taken in what it should not and is freed."""
    turn.cancel()
    await turn.ended
    turn.settled()
    opening.residency.settle(opening.actor, failed=True)
