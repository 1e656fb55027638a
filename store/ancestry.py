"""What two versions share, and whether one comes from the other.

A version comes from another if that one is older and its place is passed by the way that led to it:
by its path of segments, or by that of a version that was blended in on it.

A segment that is begun at, or blended in, was there before: its id is lower. So a search that
always goes on with the highest segment that is open meets each when all that leads to it is known,
and ends at the first that both sides have reached. It takes lanes, not segments, and no more of
their blends than lie above what was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

from sqlalchemy import Connection, bindparam, select

from statevisor.store import lanes, versions
from statevisor.store.prepared import Prepared
from statevisor.store.tables import version

_LAST_ON = Prepared(
    select(version.c.id)
    .where(
        version.c.segment == bindparam("at"),
        version.c.position <= bindparam("top"),
        version.c.id <= bindparam("older"),
    )
    .order_by(version.c.position.desc(), version.c.id.desc())
    .limit(1)
)


def common(conn: Connection, a: str, b: str) -> int | None:
    """The last version that both come from, or one of the two; None if they share nothing.

    Of all that both come from, it is the one on the segment that was begun last, and there at the
    greatest position. Nothing else that both come from comes from it. Ids of versions would not
    do: a snapshot of an old place has a high one. Raises: VersionNotFound.
    """
    ends = versions.resolve(conn, a), versions.resolve(conn, b)
    if ends[0] == ends[1]:
        return ends[0]
    search = _Search(conn, ends)
    for at, lane in search.go():
        top = search.shared(lane)
        if top is not None:
            found = _LAST_ON.scalar(conn, {"at": at, "top": top, "older": min(ends)})
            if found is not None:
                return int(found)  # none only before the first version of a life
    return None


def is_ancestor(conn: Connection, a: str, b: str) -> bool:
    """Whether b comes from a, or is it: as `common` says. Raises: VersionNotFound."""
    older, newer = versions.resolve(conn, a), versions.resolve(conn, b)
    if older >= newer:
        return older == newer
    here = lanes.place(conn, older)
    search = _Search(conn, (newer,), floor=here.segment)
    for _ in search.go():
        if search.reached[0].get(here.lane, (-1, -1)) >= (here.segment, here.position):
            return True
    return False


class _Search:
    """Goes up from versions, one side each, by falling segment."""

    def __init__(self, conn: Connection, starts: tuple[int, ...], *, floor: int = 0) -> None:
        self._conn = conn
        self._floor = floor  #: segments below it are left out
        #: How far each side is in a lane: segment and position there.
        self.reached: tuple[dict[int, tuple[int, int]], ...] = tuple({} for _ in starts)
        #: What is open: segment and position, both negative, then side and lane.
        self._open: list[tuple[int, int, int, int]] = []
        #: Blends of lanes that wait to be read: segment, negative, then order, side and lane.
        self._more: list[tuple[int, int, int, int]] = []
        self._lanes: dict[int, Any] = {}
        for side, number in enumerate(starts):
            here = lanes.place(conn, number)
            self._push(here.segment, here.position, side, here.lane)

    def go(self) -> Iterator[tuple[int, int]]:
        """Every segment at which a side enters a lane, and that lane; highest first.

        What lies above it is looked at when the caller asks for the next.
        """
        while self._open or self._more:
            if self._more and (not self._open or self._more[0][0] <= self._open[0][0]):
                low, before, side, lane = heappop(self._more)
                self._blends(lane, side, -low, before)
                continue
            first, lane = self._open[0][0], self._open[0][3]
            entered = []
            while self._open and self._open[0][0] == first:
                _, top, side, _ = heappop(self._open)
                if lane not in self.reached[side]:
                    self.reached[side][lane] = (-first, -top)
                    entered.append(side)
            yield -first, lane
            for side in entered:
                known = self._known(lane)
                if known.blends:
                    heappush(self._more, (first, lanes.LAST, side, lane))
                if known.above is not None:
                    self._push(known.segment, known.position, side, known.above)

    def shared(self, lane: int) -> int | None:
        """How far both sides pass the segment of a lane that was just met; None: one does not."""
        # one that came in behind it passes all of it: no position there is beyond its own
        ends = [reached.get(lane) for reached in self.reached]
        tops = [end[1] for end in ends if end is not None]
        return min(tops) if len(tops) == len(ends) else None

    def _known(self, lane: int) -> Any:
        """What is above a lane, and whether anything was blended into it."""
        if lane not in self._lanes:
            self._lanes |= {row.lane: row for row in lanes.up(self._conn, lane)}
        return self._lanes[lane]

    def _push(self, segment: int, top: int, side: int, lane: int) -> None:
        known = self.reached[side].get(lane, (-1, -1))
        if segment >= self._floor and known < (segment, top):
            heappush(self._open, (-segment, -top, side, lane))

    def _blends(self, lane: int, side: int, low: int, before: int) -> None:
        """Open what was blended into a lane, a part at a time."""
        rows = lanes.blended(self._conn, lane, low, before)
        for row in rows:
            self._push(row.segment, row.position, side, row.lane)
        if len(rows) == lanes.PART and rows[-1].behind > self._floor:
            heappush(self._more, (-rows[-1].behind, rows[-1].ord, side, lane))
