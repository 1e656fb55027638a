"""Walks through a whole lineage, part by part.

A parent has a lower id than its child. So a walk that always takes the newest (or, downwards, the
oldest) version next never meets one again that it has passed: it needs to know only those that are
next, not those that were.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from sqlalchemy import Connection

from statevisor.hypervisor.catalog_port import Walk
from statevisor.store import versions
from statevisor.store.lineage import DOWN, UP


def walk(conn: Connection, start: str | Sequence[int], direction: str, limit: int) -> Walk:
    """One part of a walk. Raises: VersionNotFound."""
    begin = [versions.resolve(conn, start)] if isinstance(start, str) else start
    up = direction == "ancestors"
    sign, query = (-1, UP) if up else (1, DOWN)
    queue = [sign * number for number in begin]
    heapify(queue)
    waiting = set(queue)
    seen: list[int] = []
    edges: list[tuple[int, int]] = []  # parent, child
    while queue and len(seen) < limit:
        key = heappop(queue)
        waiting.discard(key)
        number = sign * key
        seen.append(number)
        for row in query.all(conn, (number,)):
            edges.append((row.near, number) if up else (number, row.near))
            if sign * row.near not in waiting:
                waiting.add(sign * row.near)
                heappush(queue, sign * row.near)
    nodes = versions.load(conn, seen)
    known = {number: (one.handle, one.op) for number, one in zip(seen, nodes, strict=True)}
    known |= versions.short(conn, tuple({end for edge in edges for end in edge} - known.keys()))
    return Walk(
        nodes=nodes,
        edges=tuple((known[parent][0], *known[child]) for parent, child in dict.fromkeys(edges)),
        rest=tuple(sign * key for key in queue),
    )
