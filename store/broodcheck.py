"""What fsck looks for in broods: that they contradict neither each other nor the rows."""

from __future__ import annotations

from collections.abc import Container, Iterator
from types import SimpleNamespace

from sqlalchemy import Connection

from statevisor.hypervisor.catalog_port import Finding
from statevisor.hypervisor.ids import name_parts, parts
from statevisor.store import brood_pages, broods
from statevisor.store.broods import Child
from statevisor.store.prepared import execute
from statevisor.store.tables import brood

_RESTORE = "Restore a backup; what is whole can be exported first."
KIND = "brood"

#: Each finds broods (their ids first) that are not as they must be; the text names the rest.
_RULES: tuple[tuple[str, str], ...] = (
    (
        """SELECT b.id, b.parent FROM brood b LEFT JOIN version v ON v.id = b.parent
           LEFT JOIN segment s ON s.id = v.segment WHERE s.id IS NULL OR b.parent >= b.id""",
        "it comes from version {0}, which does not exist, stands nowhere or is younger",
    ),
    (
        """SELECT t.id, t.before FROM (
             SELECT id, segment, "at", created_us,
               lag(id) OVER o AS before, lag(id + count) OVER o AS next_id,
               lag(segment + count) OVER o AS next_segment, lag("at" + count) OVER o AS next_at,
               lag(created_us) OVER o AS last_us FROM brood WINDOW o AS (ORDER BY id)) t
           WHERE t.id < t.next_id OR t.segment < t.next_segment OR t."at" < t.next_at
             OR t.created_us < t.last_us""",
        "it does not follow on brood {0}: their children may be taken for each other",
    ),
    (
        """SELECT b.id, q.name FROM brood b JOIN sqlite_sequence q
           ON (q.name = 'version' AND q.seq < b.id + b.count - 1)
           OR (q.name = 'segment' AND q.seq < b.segment + b.count - 1)""",
        "the next {0} could get an id of one of its children",
    ),
    (
        """SELECT b.id, a.id FROM brood b JOIN actor a ON a.name = b.name
           WHERE a.deleted_us IS NULL""",
        "it has the name of {0}",
    ),
)
#: Rows that have the number of one of a brood: what, then the row's actor and which child.
_ROWS: tuple[tuple[str, str], ...] = (
    (
        "version",
        """SELECT v.actor_id, v.id - b.id AS nth, b.* FROM brood b
           JOIN version v ON v.id >= b.id AND v.id < b.id + b.count""",
    ),
    (
        "segment",
        """SELECT s.actor_id, s.id - b.segment AS nth, b.* FROM brood b
           JOIN segment s ON s.id >= b.segment AND s.id < b.segment + b.count""",
    ),
)
_ACTORS = "SELECT id, name, deleted_us FROM actor"


def check(conn: Connection) -> Iterator[Finding]:
    """Everything wrong in broods. Slow."""
    for query, text in _RULES:
        for number, *words in execute(conn, query):
            yield _finding(number, text.format(*words))
    salts = set()
    for row in brood_pages.every(conn):
        salts.add(row.salt)
        found = sum(1 for _ in broods.waiting(row))
        if found != row.waiting or not found:
            text = f"{row.waiting} of its children should have no rows, {found} have none"
            yield _finding(row.id, text)
    yield from _twice(conn)
    yield from _namesakes(conn, salts)


def _twice(conn: Connection) -> Iterator[Finding]:
    """Children that have rows and should not, or whose numbers another actor has."""
    names = [column.name for column in brood.c]
    for what, query in _ROWS:
        for actor, nth, *values in execute(conn, query):
            row = SimpleNamespace(**dict(zip(names, values, strict=True)))
            child = Child(row, nth)
            if broods.is_waiting(row, nth) or child.id != actor:
                yield _finding(row.id, f"{actor} has the {what} of its child {child.id}")


def _namesakes(conn: Connection, salts: Container[int]) -> Iterator[Finding]:
    """Actors that have the id or the name of a child."""
    for key, name, deleted_us in execute(conn, _ACTORS):
        known, called = parts(key), name_parts(name)
        if known and known[1] in salts and (child := broods.of_id(conn, key)):
            yield _finding(child.brood.id, f"{key} is its child and has a row as well")
        if called and called[1] in salts and deleted_us is None:
            child = broods.of_name(conn, name)
            if child is not None and child.id != key:
                yield _finding(child.brood.id, f"{key} is called as its child {child.id}: {name}")


def _finding(number: int, detail: str) -> Finding:
    return Finding(kind=KIND, detail=f"brood {number}: {detail}", advice=_RESTORE)
