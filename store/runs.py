"""Runs of tokens at rest, by segment."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, bindparam, delete, func, select

from statevisor.store.packing import pack_run, unpack_run
from statevisor.store.prepared import Prepared, inserting
from statevisor.store.tables import token_run

#: Tokens in one row at most, so that a read of a few tokens never loads a whole book.
RUN_TOKENS = 16_384

_run = token_run.c
_INSERT = inserting(token_run)
_CUT = Prepared(
    delete(token_run).where(_run.segment == bindparam("at"), _run.start >= bindparam("low"))
)
_LAST_BEFORE = Prepared(
    select(token_run)
    .where(_run.segment == bindparam("at"), _run.start < bindparam("high"))
    .order_by(_run.start.desc())
    .limit(1)
)
_LAST = Prepared(
    select(_run.start + _run.count)
    .where(_run.segment == bindparam("at"))
    .order_by(_run.start.desc())
    .limit(1)
)
_FIRST = (
    select(func.max(_run.start))
    .where(_run.segment == bindparam("at"), _run.start <= bindparam("low"))
    .scalar_subquery()
)
_WITHIN = Prepared(
    select(_run.start, _run.count, _run.kind, _run.data)
    .where(
        _run.segment == bindparam("at"),
        _run.start >= func.coalesce(_FIRST, 0),
        _run.start < bindparam("high"),
    )
    .order_by(_run.start)
)


def insert_run(
    conn: Connection, segment: int, position: int, kind: str, tokens: Sequence[int]
) -> None:
    """Write tokens, in as many rows as they need."""
    rows = [
        {
            "segment": segment,
            "start": position + at,
            "count": min(RUN_TOKENS, len(tokens) - at),
            "kind": kind,
            "data": pack_run(segment, position + at, kind, tokens[at : at + RUN_TOKENS]),
        }
        for at in range(0, len(tokens), RUN_TOKENS)
    ]
    if rows:
        _INSERT.many(conn, rows)


def cut(conn: Connection, segment: int, position: int) -> None:
    """Drop what lies at and beyond a position of a segment."""
    row = _LAST_BEFORE.first(conn, {"at": segment, "high": position})
    _CUT.run(conn, {"at": segment, "low": position})
    if row is not None and row.start + row.count > position:
        _CUT.run(conn, {"at": segment, "low": row.start})
        tokens = unpack_run(segment, row.start, row.count, row.kind, row.data)
        kept = tokens[: position - row.start]
        insert_run(conn, segment, row.start, row.kind, kept)


def end(conn: Connection, segment: int) -> int | None:
    """The position behind a segment's last token at rest; None if it has none."""
    return _LAST.scalar(conn, {"at": segment})


def within(
    conn: Connection, segment: int, start: int, stop: int
) -> Iterator[tuple[int, str, array[int]]]:
    """Position, kind and tokens of one segment in start..stop. Raises: CatalogCorrupt."""
    if start >= stop:
        return
    rows = _WITHIN.all(conn, {"at": segment, "low": start, "high": stop})
    for begin, count, kind, data in rows:
        tokens = unpack_run(segment, begin, count, kind, data)
        low, high = max(start - begin, 0), min(stop - begin, len(tokens))
        if low < high:
            yield begin + low, kind, tokens[low:high]
