"""Children without rows in the order of lists: by id, by time, the last first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import Boolean, Connection, bindparam, or_, select

from statevisor.hypervisor.ids import parts
from statevisor.hypervisor.vocab import ACTOR_PREFIX
from statevisor.store.broods import ROWS, UP_TO, Child, nths, waiting
from statevisor.store.halves import last_by
from statevisor.store.prepared import Prepared
from statevisor.store.tables import brood

_CHUNK = 500  #: broods in one statement at most
_LATEST = 2**62  #: behind every time and number
_behind = brood.c.id > bindparam("number")
_AFTER = Prepared(ROWS.where(_behind).order_by(brood.c.id).limit(bindparam("limit")))
#: What filters ask for, without what a brood comes from; all of them or those with labels.
_BARE = Prepared(
    select(brood)
    .where(_behind, or_(bindparam("all", type_=Boolean), brood.c.labels.is_not(None)))
    .order_by(brood.c.id)
    .limit(bindparam("limit"))
)


class Made(NamedTuple):
    """A version in the order of creation."""

    created_us: int
    id: int


def newest(conn: Connection, limit: int) -> list[Child]:
    """Those made last, the last one first."""
    rows = UP_TO.all(conn, {"number": _LATEST, "limit": limit})
    return list(islice((child for row in rows for child in reversed(list(waiting(row)))), limit))


def by_id(
    conn: Connection,
    after: str,
    chunk: int,
    *,
    fits: Callable[[Any], bool] | None = None,
    labelled: bool = False,
) -> Iterator[Child]:
    """Those with ids behind a text, in order of id; so many broods are read at a time.

    Of broods that do not fit, or without labels where these are wanted, few are among them.
    """
    start = last_by(conn, "at", _time_before(after))
    if start:
        row = UP_TO.one(conn, {"number": start, "limit": 1})
        yield from (child for child in waiting(row) if child.id > after)
    beyond = not after or parts(after) is not None  # then all that come now are behind it
    rows = every(conn, start, chunk) if fits is None else _fitting(conn, start, fits, labelled)
    for row in rows:
        yield from (child for child in waiting(row) if beyond or child.id > after)


def since(conn: Connection, low: tuple[int, int], high_us: int, chunk: int) -> Iterator[Made]:
    """Time and id of versions behind one time and id, before another time, in order."""
    start = last_by(conn, "created_us", low[0] - 1)
    known = UP_TO.first(conn, {"number": low[1], "limit": 1})
    if known is not None and known.created_us == low[0]:
        start = max(start, known.id - 1)
    for row in every(conn, start, chunk):
        if row.created_us >= high_us:
            return
        for nth in nths(row):
            if (row.created_us, row.id + nth) > low:
                yield Made(row.created_us, row.id + nth)


def every(conn: Connection, after: int = 0, chunk: int = _CHUNK) -> Iterator[Any]:
    """Rows of all broods behind an id, in order; so many are read at a time."""
    while part := _AFTER.all(conn, {"number": after, "limit": chunk}):
        yield from part
        after = part[-1].id
        if len(part) < chunk:
            return


def _fitting(
    conn: Connection, after: int, fits: Callable[[Any], bool], labelled: bool
) -> Iterator[Any]:
    """Broods behind an id that fit; only these are read as a whole, as there may be few of many."""
    wanted = {"all": not labelled, "limit": _CHUNK}
    while part := _BARE.all(conn, {"number": after, **wanted}):
        for row in part:
            if fits(row):
                yield UP_TO.one(conn, {"number": row.id, "limit": 1})
        after = part[-1].id


def _time_before(after: str) -> int:
    """A time that no id behind a text is below of."""
    known = parts(after)
    if known is not None:
        return known[0]
    return -1 if after < f"{ACTOR_PREFIX}~" else _LATEST
