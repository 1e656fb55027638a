"""Rows of turns: opened with their prompt, closed with their tokens folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, bindparam, select, union_all, update

from statevisor.hypervisor.catalog_port import Guard
from statevisor.hypervisor.errors import ActorQuarantined, Conflict, NotFound, StatevisorError
from statevisor.hypervisor.records import ActorRecord, TurnRecord
from statevisor.hypervisor.vocab import FinishReason, Op
from statevisor.store import actors, builds, journal, making, operations, runs, segments
from statevisor.store.guards import check_start
from statevisor.store.origins import before
from statevisor.store.prepared import Prepared, inserting
from statevisor.store.scope import Scope
from statevisor.store.tables import checkpoint, turn, version
from statevisor.store.tails import Tail

_GET = Prepared(select(turn).where(turn.c.id == bindparam("key")))
_OPEN = Prepared(select(turn).where(turn.c.finish.is_(None)).order_by(turn.c.id))
_INSERT = inserting(turn)
_beyond = union_all(
    *(
        select(table.c.position).where(
            table.c.segment == bindparam("at"), table.c.position > bindparam("top")
        )
        for table in (version, checkpoint)
    )
).subquery()
#: What was made of a segment beyond a place; a child too begins at a version.
_BEYOND = Prepared(select(_beyond.c.position).limit(1))
_END = Prepared(
    update(turn)
    .where(turn.c.id == bindparam("key"))
    .values(
        position=bindparam("at"),
        finish=bindparam("why"),
        text=bindparam("answer"),
        broken=bindparam("torn"),
    )
)


def get(conn: Connection, turn_id: str) -> TurnRecord:
    """A turn as its row says: without journalled tokens. Raises: NotFound."""
    row = _GET.first(conn, {"key": turn_id})
    if row is None:
        raise NotFound(f"there is no turn {turn_id!r}")
    return _record(row)


def open_turns(conn: Connection) -> tuple[TurnRecord, ...]:
    """Every open turn, by id, without journalled tokens."""
    return tuple(_record(row) for row in _OPEN.all(conn, {}))


def shown(record: TurnRecord, ends: Mapping[str, int]) -> TurnRecord:
    """A turn with its committed journalled tokens counted in."""
    end = ends.get(record.id) if record.finish is None else None
    return record if end is None else replace(record, position=end)


def begin(scope: Scope, new: TurnRecord, prompt: Sequence[int], guard: Guard) -> ActorRecord:
    """Open a turn and append its prompt.

    Raises: ActorNotFound, Fenced, GenerationConflict, ActorQuarantined; Conflict (a turn is open,
    or the actor stands elsewhere).
    """
    operations.check_turn(scope, guard.once)
    actor = actors.guarded(scope, new.actor_id, guard, idle=True)
    old = actor.record
    if old.quarantine is not None:
        raise ActorQuarantined(old.quarantine)
    if _GET.first(scope.conn, {"key": new.id}) is not None:
        raise Conflict(f"there is a turn {new.id} already")
    check_start(old, new, prompt)
    runs.insert_run(scope.conn, old.segment, old.position, "prompt", prompt)
    position = old.position + len(prompt)
    values = {
        "id": new.id,
        "actor_id": old.id,
        "segment": old.segment,
        "start": new.start,
        "prompt_tokens": new.prompt_tokens,
        "settings": dict(new.settings),
        "generated_from": position,
        "position": position,
        "journal_after": scope.tails.last_group,
        "broken": False,
        "epoch": old.epoch,
        "owner": scope.incarnation,
        "created_us": new.created_at,
    }
    _INSERT.run(scope.conn, values)
    scope.tails.open(
        Tail(
            turn_id=new.id,
            actor_id=old.id,
            segment=old.segment,
            start=position,
            journal_after=scope.tails.last_group,
        )
    )
    actor = actors.change(scope, actor, position=position, turn_id=new.id)
    if guard.once is not None:
        operations.store(scope, guard.once, None, turn_id=new.id)
    return actor.record


def end(
    scope: Scope,
    turn_id: str,
    *,
    finish: FinishReason,
    position: int,
    text: str,
    result: Mapping[str, Any] | None,
    guard: Guard,
    broken: bool,
) -> ActorRecord:
    """Close a turn; tokens journalled beyond `position` are dropped.

    Raises: NotFound, Fenced, GenerationConflict; Conflict (it has ended); StatevisorError (it does
    not reach `position`, or a version or an image stands beyond).
    """
    tail = _tail(scope, turn_id)
    actor = actors.guarded(scope, tail.actor_id, guard)
    if not tail.start <= position <= tail.end:
        raise StatevisorError(
            f"turn {turn_id} cannot end at {position}: it covers {tail.start}..{tail.end}"
        )
    if position < tail.end:
        beyond = _BEYOND.scalar(scope.conn, {"at": tail.segment, "top": position})
        if beyond is not None:
            raise StatevisorError(
                f"turn {turn_id} cannot end at {position}: something was made of it at {beyond}"
            )
    _fold(scope, tail, position)
    _END.run(
        scope.conn,
        {"key": turn_id, "at": position, "why": finish.value, "answer": text, "torn": broken},
    )
    scope.tails.close(tail)
    segment = segments.get(scope.conn, tail.segment)
    making.add(
        scope,
        actor_id=actor.record.id,
        epoch=actor.record.epoch,
        seq=actor.next_seq,
        segment=segment,
        position=position,
        op=Op.TURN,
        parents=before(scope, segment, position),
        build=builds.of_model(scope, actor.record.model),
        drift=actor.record.drift,
    )
    actor = actors.change(
        scope,
        actor,
        position=position,
        head=actor.next_seq,
        next_seq=actor.next_seq + 1,
        turn_id=None,
    )
    if result is not None:
        operations.settle(scope.conn, turn_id, result)
    if not scope.tails.all():
        journal.sweep(scope)
    return actor.record


def _tail(scope: Scope, turn_id: str) -> Tail:
    tail = scope.tails.get(turn_id)
    if tail is None:
        get(scope.conn, turn_id)
        raise Conflict(f"turn {turn_id} has ended")
    return tail


def _fold(scope: Scope, tail: Tail, position: int) -> None:
    """Bring a tail's tokens up to `position` to rest."""
    folded = tail.start + tail.folded
    if position < folded:
        runs.cut(scope.conn, tail.segment, position)
    else:
        fresh = tail.tokens[tail.folded : position - tail.start]
        runs.insert_run(scope.conn, tail.segment, folded, "generated", fresh)


def _record(row: Any) -> TurnRecord:
    return TurnRecord(
        id=row.id,
        actor_id=row.actor_id,
        segment=row.segment,
        start=row.start,
        prompt_tokens=row.prompt_tokens,
        settings=row.settings,
        position=row.position,
        finish=None if row.finish is None else FinishReason(row.finish),
        broken=row.broken,
        text=row.text,
        created_at=row.created_us,
    )
