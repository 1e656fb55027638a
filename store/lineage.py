"""Questions about where a version comes from and what came of it."""

from __future__ import annotations

from sqlalchemy import BigInteger, Connection, text

from statevisor.hypervisor.records import VersionRecord
from statevisor.hypervisor.vocab import Op
from statevisor.store import lanes, versions
from statevisor.store.edges import DOWNWARD, UPWARD, Edges
from statevisor.store.prepared import Prepared

#: The nearest segment of a path whose first state comes of a rule that touched a layer.
BLAME = Prepared(
    text(
        """
    WITH RECURSIVE path(id, top, parent, position, depth, hit) AS (
        SELECT id, CAST(:top AS BIGINT), parent, position, depth,
               (SELECT max(t.version) FROM touched t
                WHERE t.segment = segment.id AND t.layer IN (:layer, -1)
                  AND segment.position <= :top)
        FROM segment WHERE id = :at
        UNION ALL
        SELECT path.parent,
               CASE WHEN path.top < path.position THEN path.top ELSE path.position END,
               (SELECT s.parent FROM segment s WHERE s.id = path.parent),
               (SELECT s.position FROM segment s WHERE s.id = path.parent),
               path.depth - 1,
               (SELECT max(t.version) FROM touched t
                WHERE t.segment = path.parent AND t.layer IN (:layer, -1))
        FROM path WHERE path.parent IS NOT NULL AND path.hit IS NULL
    )
    SELECT hit FROM path ORDER BY depth LIMIT 1
    """
    ).columns(hit=BigInteger)
)


Edge = tuple[str, str, Op]


def graph(
    conn: Connection, handle: str, direction: str, depth: int, limit: int
) -> tuple[tuple[VersionRecord, ...], tuple[Edge, ...], bool]:
    """What is around a version, nearest first, with the edges among it.

    The flag says that something was left out, beyond `depth` hops or `limit` nodes.
    Raises: VersionNotFound.
    """
    start = versions.resolve(conn, handle)
    seen: dict[int, None] = {start: None}
    cut = False
    up, down = Edges(conn, UPWARD, limit), Edges(conn, DOWNWARD, limit)
    for wanted, edges in (("ancestors", up), ("descendants", down)):
        if direction in (wanted, "both"):
            edges.ahead(start, depth)
            cut |= _spread(edges, start, seen, depth, limit)
    ids = tuple(seen)
    found = up.of(ids)
    nodes = versions.load(conn, ids, found)
    known = {number: (one.handle, one.op) for number, one in zip(ids, nodes, strict=True)}
    drawn = tuple(
        (known[parent][0], *known[child])
        for child, parent in dict.fromkeys(found)
        if parent in known
    )
    return nodes, drawn, cut


def blame(conn: Connection, handle: str, layer: int) -> int | None:
    """The mutation that last touched a layer on a version's path. Raises: VersionNotFound."""
    here = lanes.place(conn, versions.resolve(conn, handle))
    at = here.segment if here.below is None else here.below
    hit = BLAME.scalar(conn, {"at": at, "top": here.position, "layer": layer})
    return None if hit is None else int(hit)


def _spread(edges: Edges, start: int, seen: dict[int, None], depth: int, limit: int) -> bool:
    """Add what is reached from `start` to `seen`, level by level; says whether any was left out."""
    level, hops, cut = [start], 0, False
    while level:
        near = edges.of(level)
        level = []
        for _, number in near:
            if number in seen:
                continue
            if hops == depth or len(seen) == limit:
                cut = True
                continue
            seen[number] = None
            level.append(number)
        hops += 1
    return cut
