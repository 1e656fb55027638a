"""Pages of actors under filters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from heapq import merge
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Select, bindparam, func, select

from statevisor.hypervisor.catalog_port import ActorQuery
from statevisor.store import brood_pages, broods
from statevisor.store.actors import LIVING, Actor, from_brood, from_row
from statevisor.store.broods import Child
from statevisor.store.prepared import Prepared, PreparedIn
from statevisor.store.tables import actor, actor_label

_ESCAPE = re.compile("[/%_]")
_RECENT = Prepared(
    LIVING.order_by(actor.c.updated_us.desc(), actor.c.id.desc()).limit(bindparam("limit"))
)
_CHUNK = 500  #: rows or ids in one statement at most


def page(conn: Connection, query: ActorQuery) -> tuple[list[Actor], bool]:
    """One page in order of id, and whether more follow."""
    found: list[Actor] = []
    for one in merge(_candidates(conn, query), _waiting(conn, query), key=attrgetter("id")):
        if query.exclude is not None and one.id in query.exclude:
            continue
        if len(found) == query.limit:
            return found, True
        found.append(from_brood(one) if isinstance(one, Child) else from_row(one))
    return found, False


def recent(conn: Connection, limit: int) -> list[Actor]:
    """The actors that changed last; looks at every living one."""
    found = [from_row(row) for row in _RECENT.all(conn, {"limit": limit})]
    found += map(from_brood, brood_pages.newest(conn, limit))
    found.sort(key=lambda one: (one.record.updated_at, one.record.id), reverse=True)
    return found[:limit]


def _waiting(conn: Connection, query: ActorQuery) -> Iterator[Child]:
    """Those without rows that match all filters but `exclude`, in order of id."""
    after = query.after or ""
    key, value = query.label or (None, None)
    part = "" if query.q is None else query.q.lower()

    def named(child: Child) -> bool:
        return part in child.name.lower()

    def alike(row: Any) -> bool:
        """Whether all of a brood match, but for their names."""
        labels = row.labels or {}
        return (
            (query.model is None or row.model == query.model)
            and (key is None or key in labels)
            and (value is None or labels[key] == value)
        )

    def fits(row: Any) -> bool:
        return alike(row) and (not part or any(map(named, broods.waiting(row))))

    if query.ids is not None:
        some = iter(broods.of_ids(conn, [one for one in query.ids if one > after]))
    else:
        some = brood_pages.by_id(
            conn,
            after,
            min(_CHUNK, query.limit + 1),
            fits=fits if query.model or query.label or query.q else None,
            labelled=query.label is not None,
        )
    return (child for child in some if alike(child.brood) and named(child))


def _candidates(conn: Connection, query: ActorQuery) -> Iterator[Any]:
    """Actors with rows that match all filters but `exclude`, in order of id."""
    key, value = query.label or (None, None)
    params = {
        "model": query.model,
        "part": None if query.q is None else _ESCAPE.sub(r"/\g<0>", query.q.lower()),
        "label": key,
        "value": value,
    }
    given = {name: one for name, one in params.items() if one is not None}
    after = query.after or ""
    # One row beyond the page tells whether more follow; filters held here may need further chunks.
    chunk = _CHUNK if query.exclude else min(_CHUNK, query.limit + 1)
    if query.ids is not None:
        wanted = sorted(one for one in query.ids if one > after)
        chosen = _chosen(frozenset(given))
        for at in range(0, len(wanted), chunk):
            yield from chosen.all(conn, wanted[at : at + chunk], given)
        return
    pages = _pages(frozenset(given))
    while True:
        part = pages.all(conn, given | {"after": after, "limit": chunk})
        yield from part
        if len(part) < chunk:
            return
        after = part[-1].id


@cache
def _pages(filters: frozenset[str]) -> Prepared:
    """A page of living actors under some filters."""
    return Prepared(
        _filtered(filters).where(actor.c.id > bindparam("after")).limit(bindparam("limit"))
    )


@cache
def _chosen(filters: frozenset[str]) -> PreparedIn:
    """Living actors of given ids under some filters."""
    return PreparedIn(lambda keys: _filtered(filters).where(actor.c.id.in_(keys)))


def _filtered(filters: frozenset[str]) -> Select[Any]:
    rows = LIVING.order_by(actor.c.id)
    if "model" in filters:
        rows = rows.where(actor.c.model == bindparam("model"))
    if "part" in filters:
        name = func.lower(actor.c.name)
        rows = rows.where(name.contains(bindparam("part"), autoescape=False, escape="/"))
    if "label" in filters:
        labelled = select(actor_label.c.actor_id).where(actor_label.c.key == bindparam("label"))
        if "value" in filters:
            labelled = labelled.where(actor_label.c.value == bindparam("value"))
        rows = rows.where(actor.c.id.in_(labelled))
    return rows
