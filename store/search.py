"""Pages of versions under filters, in the order of their creation.

A page begins behind a version and reads no row twice: terms and kinds are indexed in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Select, Text, bindparam, insert, literal, select, tuple_

from statevisor.hypervisor.catalog_port import VersionQuery
from statevisor.hypervisor.errors import VersionNotFound
from statevisor.hypervisor.records import VersionRecord
from statevisor.hypervisor.vocab import Op
from statevisor.store import brood_pages, broods, terms, versions
from statevisor.store.prepared import Prepared
from statevisor.store.tables import version, version_term

_END = 2**63 - 1  #: later than every time
#: Most come of turns: what is found of them leaves little time for the others.
_KINDS = (Op.TURN, *(op for op in Op if op is not Op.TURN))

_ADD = Prepared(
    insert(version_term).from_select(
        ["term", "created_us", "version"],
        select(
            bindparam("word", type_=Text).label("term"), version.c.created_us, version.c.id
        ).where(version.c.id == bindparam("key")),
    )
)
_STANDS = Prepared(
    select(version.c.created_us, version.c.id).where(version.c.id == bindparam("key"))
)


def add_term(conn: Connection, number: int, term: str) -> None:
    """Let a version be found by a term."""
    _ADD.run(conn, {"word": term, "key": number})


def page(conn: Connection, query: VersionQuery) -> tuple[tuple[VersionRecord, ...], bool]:
    """One page, and whether more follow. Raises: VersionNotFound (it begins behind nothing)."""
    low = (-1 if query.since_us is None else query.since_us, -1)
    if query.after is not None:
        low = max(low, _stands(conn, versions.resolve(conn, query.after)))
    if query.tag is not None:
        return _tagged(conn, query, low), False
    params: dict[str, Any] = {
        "low_us": low[0],
        "low_id": low[1],
        "high_us": _END if query.until_us is None else query.until_us,
        "limit": query.limit + 1,
    }
    wanted = terms.asked(query)
    if wanted:
        params |= {f"word{n}": term for n, term in enumerate(wanted)}
        params |= {} if query.op is None else {"kind": query.op.value}
        found = _by_terms(len(wanted), query.op is not None).all(conn, params)
    else:
        found = _of_kinds(conn, params, _KINDS if query.op is None else (query.op,))
    ids = [row.id for row in found[: query.limit]]
    return versions.load(conn, ids), len(found) > query.limit


def _of_kinds(conn: Connection, params: dict[str, Any], kinds: Sequence[Op]) -> list[Any]:
    """The first rows among several kinds, and one that says whether more follow."""
    found: list[Any] = []
    for op in kinds:
        found += _by_kind().all(conn, params | {"kind": op.value})
        if op is Op.FORK:
            low, limit = (params["low_us"], params["low_id"]), params["limit"]
            found += islice(brood_pages.since(conn, low, params["high_us"], limit), limit)
        found.sort()  # by time, then id
        if len(found) >= params["limit"]:
            del found[params["limit"] :]
            params = params | {"high_us": min(params["high_us"], found[-1].created_us + 1)}
    return found


def _stands(conn: Connection, number: int) -> tuple[int, int]:
    """Where a version is in the order of creation."""
    row = _STANDS.first(conn, {"key": number})
    if row is not None:
        return row.created_us, row.id
    child = broods.of_number(conn, number)
    assert child is not None  # every version has a row or is one of a brood
    return child.brood.created_us, number


def _tagged(
    conn: Connection, query: VersionQuery, low: tuple[int, int]
) -> tuple[VersionRecord, ...]:
    """The one version of a tag, if it is an answer."""
    assert query.tag is not None
    try:
        number = versions.resolve(conn, query.tag)
    except VersionNotFound:
        return ()
    found = versions.one(conn, number)
    here = (found.created_at, number)
    return (found,) if here > low and terms.matches(query, found) else ()


@cache
def _by_kind() -> Prepared:
    """Visible versions of one kind."""
    rows = select(version.c.created_us, version.c.id).where(
        version.c.op == bindparam("kind"), version.c.hidden.is_(False)
    )
    return Prepared(_between(rows, version.c.created_us, version.c.id))


@cache
def _by_terms(count: int, of_kind: bool) -> Prepared:
    """Versions that have so many terms; no anchor has any."""
    first = version_term.c
    rows = select(first.created_us, first.version.label("id")).where(
        first.term == bindparam("word0")
    )
    for n in range(1, count):
        more = version_term.alias(f"more{n}").c
        rows = rows.where(
            select(literal(1))
            .where(
                more.term == bindparam(f"word{n}"),
                more.created_us == first.created_us,
                more.version == first.version,
            )
            .exists()
        )
    if of_kind:
        rows = rows.join(version, version.c.id == first.version).where(
            version.c.op == bindparam("kind")
        )
    return Prepared(_between(rows, first.created_us, first.version))


def _between(rows: Select[Any], made: Any, number: Any) -> Select[Any]:
    """The part of an ordered list that a page shows."""
    return (
        rows.where(
            tuple_(made, number) > tuple_(bindparam("low_us"), bindparam("low_id")),
            made < bindparam("high_us"),
        )
        .order_by(made, number)
        .limit(bindparam("limit"))
    )
