"""Generated tokens of open turns on their way into token runs.

Every group commit of the engine is one row. A turn's tokens are folded into its segment's runs
when it ends, when enough have gathered, or when they would keep old rows alive; rows below the
oldest token not yet folded are deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update

from statevisor.hypervisor.errors import Conflict, StatevisorError
from statevisor.hypervisor.ports import JournalEntry
from statevisor.store import runs
from statevisor.store.guards import check_incarnation
from statevisor.store.packing import pack_group, unpack_group
from statevisor.store.scope import Scope
from statevisor.store.tables import journal, turn
from statevisor.store.tails import Tail, Tails

FOLD_TOKENS = 4096  #: of one turn, after which they become a run
FOLD_GROUPS = 4096  #: that a turn may keep alive
SWEEP_GROUPS = 256  #: between two looks at what can be folded and deleted

_INSERT = insert(journal)
_DELETE = delete(journal).where(journal.c.id < bindparam("low"))
_LAST = select(func.max(journal.c.id))
_MOVE = update(turn).where(turn.c.id == bindparam("turn")).values(position=bindparam("to"))
_OPEN = select(turn).where(turn.c.finish.is_(None)).order_by(turn.c.id)
_GROUPS = (
    select(journal.c.id, journal.c.data)
    .where(journal.c.id > bindparam("after"))
    .order_by(journal.c.id)
)


def append(scope: Scope, entries: Sequence[JournalEntry], incarnation: int) -> None:
    """Add one group. Raises: Fenced; Conflict (a turn has ended); StatevisorError (a gap)."""
    check_incarnation(scope.incarnation, incarnation)
    if not entries:
        return
    tails, group = scope.tails, scope.tails.next_group()
    for entry in entries:
        tail = tails.get(entry.turn_id)
        if tail is None:
            raise Conflict(f"turn {entry.turn_id} is not open")
        if entry.position != tail.end or entry.segment != tail.segment:
            raise StatevisorError(
                f"turn {entry.turn_id} goes on at {tail.end} of segment {tail.segment}, "
                f"not at {entry.position} of {entry.segment}"
            )
        tails.extend(tail, entry.tokens, group)
    row = {"id": group, "incarnation": incarnation, "data": pack_group(group, entries)}
    scope.conn.execute(_INSERT, row)
    for entry in entries:
        tail = tails.get(entry.turn_id)
        if tail is not None and len(tail.tokens) - tail.folded >= FOLD_TOKENS:
            fold(scope, tail)
    if group % SWEEP_GROUPS == 0:
        sweep(scope)


def fold(scope: Scope, tail: Tail) -> None:
    """Write what an open turn has gathered as a run."""
    begin = tail.start + tail.folded
    runs.insert_run(scope.conn, tail.segment, begin, "generated", tail.tokens[tail.folded :])
    scope.conn.execute(_MOVE, {"turn": tail.turn_id, "to": tail.end})
    scope.tails.fold(tail)


def sweep(scope: Scope) -> None:
    """Fold what lags behind and delete the rows that no open turn needs."""
    oldest = scope.tails.last_group - FOLD_GROUPS
    for tail in scope.tails.all():
        if tail.since and tail.since < oldest:
            fold(scope, tail)
    low = min(
        (tail.since for tail in scope.tails.all() if tail.since),
        default=scope.tails.last_group + 1,
    )
    scope.conn.execute(_DELETE, {"low": low})


def load(conn: Connection, tails: Tails) -> None:
    """Rebuild the tails of open turns from their runs and the journal.

    Raises: StatevisorError, naming the row that is damaged or leaves a gap.
    """
    opened = [_tail(conn, row) for row in conn.execute(_OPEN)]
    by_segment = {tail.segment: tail for tail in opened}
    after = min((tail.journal_after for tail in opened), default=None)
    last = max((tail.journal_after for tail in opened), default=0)
    tails.replace(opened, max(last, conn.scalar(_LAST) or 0))
    if after is None:
        return
    for group, data in conn.execute(_GROUPS, {"after": after}):
        for segment, position, tokens in unpack_group(group, data):
            tail = by_segment.get(segment)
            if tail is None or group <= tail.journal_after:
                continue
            if position > tail.end:
                raise StatevisorError(
                    f"journal row {group} goes on at {position} of segment {segment}, "
                    f"but its turn reaches only {tail.end}"
                )
            fresh = tokens[tail.end - position :]
            if fresh:
                tails.extend(tail, fresh, group)


def _tail(conn: Connection, row: Row[Any]) -> Tail:
    tail = Tail(
        turn_id=row.id,
        actor_id=row.actor_id,
        segment=row.segment,
        start=row.generated_from,
        journal_after=row.journal_after,
    )
    for _, _, tokens in runs.within(conn, row.segment, tail.start, row.position):
        tail.tokens.extend(tokens)
    tail.folded = len(tail.tokens)
    return tail
