"""Generated tokens of open turns on their way into token runs.

Every group commit of the engine is one row. A turn's tokens are folded into its segment's runs
when it ends, when enough have gathered, or when they would keep old rows alive; rows below the
oldest token not yet folded are deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, select, update

from statevisor.hypervisor.catalog_port import JournalEntry
from statevisor.hypervisor.errors import StatevisorError
from statevisor.store import runs
from statevisor.store.guards import check_incarnation
from statevisor.store.packing import pack_group, unpack_group
from statevisor.store.prepared import Prepared, inserting
from statevisor.store.scope import Scope
from statevisor.store.tables import journal, turn
from statevisor.store.tails import Tail, Tails

FOLD_TOKENS = 4096  #: of one turn, after which they become a run
FOLD_GROUPS = 4096  #: that a turn may keep alive
SWEEP_GROUPS = 256  #: between two looks at what can be folded and deleted

_INSERT = inserting(journal)
_DELETE = Prepared(delete(journal).where(journal.c.id < bindparam("low")))
_LAST = Prepared(select(func.max(journal.c.id)))
_MOVE = Prepared(
    update(turn).where(turn.c.id == bindparam("turn")).values(position=bindparam("to"))
)
_OPEN = Prepared(select(turn).where(turn.c.finish.is_(None)).order_by(turn.c.id))
_GROUPS = Prepared(
    select(journal.c.id, journal.c.data)
    .where(journal.c.id > bindparam("after"))
    .order_by(journal.c.id)
)


def append(scope: Scope, entries: Sequence[JournalEntry], incarnation: int) -> None:
    """Add one group. Raises: Fenced; Conflict (a turn has ended); StatevisorError (a gap)."""
    check_incarnation(scope.incarnation, incarnation)
    if not entries:
        return
    group = scope.tails.next_group()
    touched = scope.tails.extend(entries, group)
    row = {"id": group, "incarnation": incarnation, "data": pack_group(group, entries)}
    _INSERT.run(scope.conn, row)
    for tail in touched:
        if len(tail.tokens) - tail.folded >= FOLD_TOKENS:
            fold(scope, tail)
    if group % SWEEP_GROUPS == 0:
        sweep(scope)


def fold(scope: Scope, tail: Tail) -> None:
    """Write what an open turn has gathered as a run."""
    begin = tail.start + tail.folded
    runs.insert_run(scope.conn, tail.segment, begin, "generated", tail.tokens[tail.folded :])
    _MOVE.run(scope.conn, {"turn": tail.turn_id, "to": tail.end})
    scope.tails.fold(tail)


def settle(scope: Scope, segment: int, position: int) -> None:
    """Bring the tokens of a segment up to a position to rest: another one begins there.

    Readers of a path know the tokens of a turn that is open on its last segment, and no others.
    """
    for tail in scope.tails.all():
        if tail.segment == segment and position > tail.start + tail.folded:
            fold(scope, tail)


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
    _DELETE.run(scope.conn, {"low": low})


def load(conn: Connection, tails: Tails) -> None:
    """Rebuild the tails of open turns from their runs and the journal.

    Raises: StatevisorError, naming the row that is damaged or leaves a gap.
    """
    opened = [_tail(conn, row) for row in _OPEN.all(conn, {})]
    by_segment = {tail.segment: tail for tail in opened}
    after = min((tail.journal_after for tail in opened), default=None)
    last = max((tail.journal_after for tail in opened), default=0)
    tails.replace(opened, max(last, _LAST.scalar(conn, {}) or 0))
    if after is None:
        return
    for group, data in _GROUPS.all(conn, {"after": after}):
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
                tail.tokens.extend(fresh)
                tail.since = tail.since or group


def _tail(conn: Connection, row: Any) -> Tail:
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
