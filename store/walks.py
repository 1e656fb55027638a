"""Walks through a whole lineage, part by part.

A parent has a lower id than its child. So a walk that always takes the newest (or, downwards, the
oldest) version next never meets one again that it has passed: it needs to know only those that are
next, not those that were.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from sqlalchemy import Connection

from statevisor.hypervisor.catalog_port import Walk
from statevisor.store import versions
from statevisor.store.edges import DOWNWARD, UPWARD


def walk(conn: Connection, start: str | Sequence[int], direction: str, limit: int) -> Walk:
    """One part of a walk. Raises: VersionNotFound."""
    begin = [versions.resolve(conn, start)] if isinstance(start, str) else start
    way = _Way(conn, begin, up=direction == "ancestors")
    while way.queue and len(way.seen) < limit:
        way.step(limit - len(way.seen))
    nodes = versions.load(conn, way.seen)
    known = {number: (one.handle, one.op) for number, one in zip(way.seen, nodes, strict=True)}
    strangers = {end for edge in way.edges for end in edge} - known.keys()
    known |= versions.short(conn, tuple(strangers))
    return Walk(
        nodes=nodes,
        edges=tuple(
            (known[parent][0], *known[child]) for parent, child in dict.fromkeys(way.edges)
        ),
        rest=tuple(way.sign * key for key in way.queue),
    )


class _Way:
    """What was passed in this part, and what is next: ids with a sign, the first one lowest."""

    def __init__(self, conn: Connection, begin: Sequence[int], *, up: bool) -> None:
        self._conn = conn
        self._way = UPWARD if up else DOWNWARD
        self._up = up
        self.sign = -1 if up else 1
        self.queue = [self.sign * number for number in begin]
        heapify(self.queue)
        self._waiting = set(self.queue)
        self.seen: list[int] = []
        self.edges: list[tuple[int, int]] = []  #: parent, child

    def step(self, most: int) -> None:
        """Pass the next version, and those of its line that come before any other."""
        key = heappop(self.queue)
        self._waiting.discard(key)
        bound = abs(self.queue[0]) if self.queue else self._way.bound
        line = self._way.follow(self._conn, abs(key), bound, most)
        self.seen += line
        for here, near in pairwise(line):
            self._edge(here, near)
        for row in self._way.around(self._conn, (line[-1],)):
            self._edge(line[-1], row.near)
            if self.sign * row.near not in self._waiting:
                self._waiting.add(self.sign * row.near)
                heappush(self.queue, self.sign * row.near)

    def _edge(self, here: int, near: int) -> None:
        self.edges.append((near, here) if self._up else (here, near))
