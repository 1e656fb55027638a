"""What fsck looks for in the rows: places where two of them contradict each other.

Plain SQL that reads whole tables: nothing here is on the way of a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlalchemy import Connection

from statevisor.hypervisor.catalog_port import Finding
from statevisor.hypervisor.errors import CatalogCorrupt, StatevisorError
from statevisor.store import broodcheck, journal
from statevisor.store.db import faults
from statevisor.store.packing import unpack_group, unpack_run
from statevisor.store.prepared import execute
from statevisor.store.tails import Tails

_RESTORE = "Restore a backup; what is whole can be exported first."
_WRONG = "What it comes from may be told wrong. Restore a backup."
_BACK = "Roll the actor back to a version before it."

#: Behind the last token at rest of segment s.
_END = """coalesce((SELECT r.start + r.count FROM token_run r WHERE r.segment = s.id
    ORDER BY r.start DESC LIMIT 1), s.position)"""

#: Kind, query (actor, version, then what the text names), text, advice.
_RULES: tuple[tuple[str, str, str, str], ...] = (
    (
        "segment_parent",
        """SELECT s.actor_id, NULL, s.id, s.parent FROM segment s
           LEFT JOIN segment p ON p.id = s.parent WHERE s.parent IS NOT NULL AND p.id IS NULL""",
        "segment {0} goes on from segment {1}, which does not exist",
        _RESTORE,
    ),
    (
        "segment_parent",
        """SELECT c.actor_id, NULL, c.id, s.id FROM segment c JOIN segment s ON s.id = c.parent
           WHERE c.depth <> s.depth + 1 OR (c.position < s.position AND NOT c.rooted)""",
        "segment {0} does not fit to its parent {1}",
        _RESTORE,
    ),
    (
        "segment_stray",
        """SELECT s.actor_id, NULL, s.id FROM segment s
           WHERE NOT EXISTS (SELECT 1 FROM actor a WHERE a.id = s.actor_id)""",
        "segment {0} belongs to an actor that does not exist",
        "It takes room and does no harm.",
    ),
    (
        "run_gap",
        """SELECT t.actor_id, NULL, t.start, t.segment, t.expected FROM (
             SELECT s.actor_id, r.segment, r.start, coalesce(
               lag(r.start + r.count) OVER (PARTITION BY r.segment ORDER BY r.start),
               s.position) AS expected
             FROM token_run r JOIN segment s ON s.id = r.segment) t WHERE t.start <> t.expected""",
        "the tokens from {0} of segment {1} should begin at {2}",
        _BACK,
    ),
    (
        "head",
        """SELECT a.id, NULL, a.head FROM actor a WHERE a.deleted_us IS NULL AND NOT EXISTS
           (SELECT 1 FROM version v WHERE v.actor_id = a.id AND v.seq = a.head)""",
        "its head, version {0}, does not exist",
        _RESTORE,
    ),
    (
        "head",
        """SELECT a.id, v.seq, v.position, a.position FROM actor a
           JOIN version v ON v.actor_id = a.id AND v.seq = a.head
           WHERE a.deleted_us IS NULL AND a.turn_id IS NULL
             AND (v.segment <> a.segment OR v.position <> a.position)""",
        "its head stands at {0}, the actor at {1} or on another segment",
        _RESTORE,
    ),
    (
        "head",
        """SELECT t.id, NULL, t.next_seq, t.last FROM (
             SELECT a.id, a.next_seq, max(v.seq) AS last FROM actor a
             JOIN version v ON v.actor_id = a.id GROUP BY a.id) t WHERE t.next_seq <> t.last + 1""",
        "its next version would be {0}, its last one is {1}",
        _RESTORE,
    ),
    (
        "version_place",
        """SELECT v.actor_id, v.seq, v.place FROM version v JOIN segment s ON s.id = v.segment
           WHERE v.place <> CASE WHEN v.position = s.position
                                 THEN coalesce(s.place, s.id) ELSE s.id END""",
        "its image is looked for under segment {0}, which is another's",
        _RESTORE,
    ),
    (
        "version_parent",
        "SELECT v.actor_id, v.seq, p.parent FROM version_parent p JOIN version v ON v.id = p.child"
        " WHERE p.parent >= p.child",
        "it is older than its parent {0}",
        _RESTORE,
    ),
    (
        "version_term",
        """SELECT v.actor_id, v.seq, t.term FROM version_term t JOIN version v ON v.id = t.version
           WHERE v.hidden OR v.created_us <> t.created_us""",
        "it is found by {0}, out of its place or though it is an anchor",
        "Searches may show it wrong; nothing else does. Restore a backup.",
    ),
    (
        "turn",
        """SELECT t.actor_id, NULL, t.id FROM turn t WHERE t.finish IS NULL AND NOT EXISTS
           (SELECT 1 FROM actor a WHERE a.id = t.actor_id AND a.turn_id = t.id)""",
        "turn {0} is open, but its actor does not know it",
        _RESTORE,
    ),
    (
        "turn",
        """SELECT a.id, NULL, a.turn_id FROM actor a WHERE a.turn_id IS NOT NULL AND NOT EXISTS
           (SELECT 1 FROM turn t WHERE t.id = a.turn_id AND t.finish IS NULL)""",
        "its open turn {0} does not exist",
        _RESTORE,
    ),
    (
        "root_missing",
        """SELECT s.actor_id, NULL, s.id, s.position FROM segment s WHERE s.rooted AND NOT EXISTS
           (SELECT 1 FROM checkpoint c WHERE c.segment = s.id AND c.position = s.position)""",
        "segment {0} begins with an image at {1}, which has no row",
        "Roll the actor back to before its mutation; an import must be imported again.",
    ),
    (
        "image_row",
        """SELECT s.actor_id, NULL, c.position, c.segment FROM checkpoint c
           JOIN segment s ON s.id = c.segment
           WHERE NOT EXISTS (SELECT 1 FROM image i WHERE i.digest = c.digest)""",
        "the image at {0} of segment {1} has no row",
        _RESTORE,
    ),
    (
        "image_overlap",
        """SELECT NULL, NULL, t.digest, t.slab, t."offset" FROM (
             SELECT digest, slab, "offset", lag("offset" + length) OVER
               (PARTITION BY slab ORDER BY "offset") AS before FROM image) t
           WHERE t.before > t."offset" """,
        "image {0} in slab {1} at {2} overlaps the one before it",
        _RESTORE,
    ),
    (
        "image_unnamed",
        """SELECT NULL, NULL, i.digest FROM image i WHERE i.orphaned_us IS NULL AND NOT EXISTS
           (SELECT 1 FROM checkpoint c WHERE c.digest = i.digest)""",
        "no place names image {0}",
        "It takes room and does no harm.",
    ),
    (
        "lane",
        """SELECT s.actor_id, NULL, s.id FROM segment s LEFT JOIN lane l ON l.segment = s.id
           LEFT JOIN lane p ON p.segment = s.parent
           WHERE coalesce(l.head, s.id) <> CASE WHEN s.rooted AND s.parent IS NOT NULL
                                           THEN coalesce(p.head, s.parent) ELSE s.id END""",
        "segment {0} is in a lane that is not its own",
        _WRONG,
    ),
    (
        "lane",
        """SELECT min(s.actor_id), NULL, s.parent FROM segment s
           WHERE s.rooted AND s.parent IS NOT NULL GROUP BY s.parent HAVING count(*) > 1""",
        "the lane of segment {0} goes on in two ways",
        _WRONG,
    ),
    (
        "blend",
        """SELECT c.actor_id, c.seq, e.parent FROM version_parent e
           JOIN version c ON c.id = e.child JOIN version p ON p.id = e.parent
           LEFT JOIN lane l ON l.segment = c.segment
           WHERE e.ord > 0 AND NOT EXISTS (SELECT 1 FROM blend b
             WHERE b.head = coalesce(l.head, c.segment) AND b.segment = c.segment
               AND b.ord = e.ord AND b.source = p.segment AND b.position = p.position)""",
        "that version {0} was blended into it is not found from below",
        _WRONG,
    ),
)
_BEYOND = f"""SELECT v.actor_id, v.seq, v.segment, v.position, {_END} AS top FROM version v
    JOIN segment s ON s.id = v.segment WHERE v.position < s.position OR v.position > {_END}"""
_STANDS = f"""SELECT a.id, a.turn_id, a.segment, a.position, {_END} AS top FROM actor a
    JOIN segment s ON s.id = a.segment
    WHERE a.deleted_us IS NULL AND (a.position > {_END}
      OR (a.turn_id IS NULL AND a.position <> {_END}))"""
_AHEAD = f"""SELECT s.actor_id, NULL, s.id, c.position, {_END} AS top FROM checkpoint c
    JOIN segment s ON s.id = c.segment WHERE c.position < s.position OR c.position > {_END}"""


def check(conn: Connection) -> tuple[Finding, ...]:
    """Everything wrong in the rows. Slow. Raises: DBAPIError (the file itself is damaged)."""
    found = [Finding(kind="database", detail=fault, advice=_RESTORE) for fault in faults(conn)]
    for kind, query, text, advice in _RULES:
        for actor, seq, *words in execute(conn, query):
            found.append(_finding(kind, text.format(*words), advice, actor, seq))
    found += broodcheck.check(conn)
    found += _runs(conn)
    found += _journal(conn)
    found += _positions(conn)
    return tuple(found)


def _finding(
    kind: str, detail: str, advice: str, actor: str | None, seq: int | None = None
) -> Finding:
    version = None if seq is None else f"{actor}@{seq}"
    return Finding(kind=kind, detail=detail, advice=advice, actor=actor, version=version)


def _runs(conn: Connection) -> Iterator[Finding]:
    """Runs whose tokens or place are not what was written."""
    query = """SELECT s.actor_id, r.segment, r.start, r.count, r.kind, r.data FROM token_run r
               LEFT JOIN segment s ON s.id = r.segment ORDER BY r.segment, r.start"""
    for actor, *row in execute(conn, query):
        try:
            unpack_run(*row)
        except CatalogCorrupt as error:
            yield _finding("run_damaged", error.detail, _BACK, actor)


def _journal(conn: Connection) -> Iterator[Finding]:
    """Groups whose bytes are not what was written."""
    for group, data in execute(conn, "SELECT id, data FROM journal ORDER BY id"):
        try:
            for _ in unpack_group(group, data):
                pass
        except StatevisorError as error:
            yield Finding(kind="journal", detail=error.detail, advice=_RESTORE)


def _positions(conn: Connection) -> Iterator[Finding]:
    """Versions and actors that stand where no token leads."""
    tails = Tails()
    try:
        journal.load(conn, tails)
    except StatevisorError as error:
        yield Finding(kind="journal", detail=error.detail, advice=_RESTORE)
    reach: Mapping[int, int] = {tail.segment: tail.end for tail in tails.all()}
    for actor, seq, segment, position, top in execute(conn, _BEYOND):
        if not top < position <= reach.get(segment, 0):
            text = f"position {position} is beyond the transcript, which ends at {top}"
            yield _finding("version_beyond", text, _BACK, actor, seq)
    for actor, _, segment, position, top in execute(conn, _AHEAD):
        if not top < position <= reach.get(segment, 0):
            text = f"an image stands at {position}, its transcript ends at {top}"
            yield _finding("image_beyond", text, _BACK, actor)
    for actor, _, segment, position, top in execute(conn, _STANDS):
        if not top < position <= reach.get(segment, 0):
            text = f"it stands at {position}, its transcript ends at {top}"
            yield _finding("actor_position", text, _BACK, actor)
