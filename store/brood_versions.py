"""Versions of children without rows, and the edges to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, func, select

from statevisor.store.broods import PARENT, ROWS, Child, is_waiting, nths
from statevisor.store.prepared import Prepared, PreparedIn
from statevisor.store.tables import brood, build, checkpoint, image

_MANY = 400  #: broods of several versions that are read without a look at each alone
_before = brood.alias("before")


def _holding(keys: Sequence[Any]) -> list[Any]:
    """Of which brood each of some versions is, if it is of one."""
    last = select(func.max(_before.c.id))
    return [last.where(_before.c.id <= key).scalar_subquery() for key in keys]


#: Those that hold some versions, with what a version shows of its build and image.
_SHOWN = PreparedIn(
    lambda keys: (
        ROWS.add_columns(build.c.name.label("build_name"), checkpoint.c.digest, image.c.nbytes)
        .outerjoin(build, build.c.id == PARENT.c.build)
        .outerjoin(
            checkpoint,
            and_(
                checkpoint.c.segment == PARENT.c.place,
                checkpoint.c.position == PARENT.c.position,
            ),
        )
        .outerjoin(image, image.c.digest == checkpoint.c.digest)
        .where(brood.c.id.in_(_holding(keys)))
    )
)
_short = select(brood.c.id, brood.c.parent, brood.c.count, brood.c.hatched)
_below = _short.order_by(brood.c.parent, brood.c.id)
_BELOW = PreparedIn(lambda keys: _below.where(brood.c.parent.in_(keys)))
_SOME_BELOW = PreparedIn(
    lambda keys: _below.where(brood.c.parent.in_(keys)).limit(bindparam("rows"))
)
_FIRST_BELOW = Prepared(_below.where(brood.c.parent == bindparam("at")).limit(bindparam("rows")))
_HOLDING = PreparedIn(lambda keys: _short.where(brood.c.id.in_(_holding(keys))))
_called = _short.add_columns(brood.c.at, brood.c.salt, brood.c.name)
_CALLED = PreparedIn(lambda keys: _called.where(brood.c.id.in_(_holding(keys))))


class Edge(NamedTuple):
    """A version and a neighbour of it."""

    here: int
    near: int


def numbered(conn: Connection, numbers: Sequence[int]) -> dict[int, Child]:
    """Those of some versions, with what `Child.version` shows."""
    found = _held(_SHOWN.all(conn, numbers), numbers) if numbers else ()
    return {number: Child(row, number - row.id) for number, row in found}


def handles(conn: Connection, numbers: Sequence[int]) -> dict[int, str]:
    """How those of some versions are shown."""
    found = _held(_CALLED.all(conn, numbers), numbers) if numbers else ()
    return {number: f"{Child(row, number - row.id).name}@0" for number, row in found}


def above(conn: Connection, numbers: Sequence[int]) -> list[Edge]:
    """The edges to the parents of those among some versions that are of a brood."""
    found = _held(_HOLDING.all(conn, numbers), numbers) if numbers else ()
    return [Edge(number, row.parent) for number, row in found]


def below(conn: Connection, parents: Sequence[int], most: int | None = None) -> list[Edge]:
    """The edges to children of some versions, at least `most` of each that has so many."""
    if most is None:
        rows = _BELOW.all(conn, parents)
    else:
        rows = _SOME_BELOW.all(conn, parents, {"rows": _MANY})
        if len(rows) >= _MANY:
            one = {"rows": most}
            rows = [row for at in parents for row in _FIRST_BELOW.all(conn, {"at": at, **one})]
    return [Edge(row.parent, row.id + nth) for row in rows for nth in islice(nths(row), most)]


def _held(rows: Iterable[Any], numbers: Iterable[int]) -> Iterator[tuple[int, Any]]:
    """Each of some versions that is of one of these broods and has no row, with the brood."""
    broods = sorted({row.id: row for row in rows}.items())
    at = -1
    for number in sorted(set(numbers)):
        while at + 1 < len(broods) and broods[at + 1][0] <= number:
            at += 1
        if at >= 0 and is_waiting(broods[at][1], number - broods[at][0]):
            yield number, broods[at][1]
