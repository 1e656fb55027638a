"""Who leaves a tier next. Pure policy over plain numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop


@dataclass(frozen=True, slots=True)
class Candidate:
    """An actor in a tier."""

    id: str
    used: float  #: when it was last used, in seconds of the monotonic clock
    pinned: bool
    busy: bool  #: something runs or waits for it


def victims(candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Actors that may be moved, least recently used first; never a pinned or a busy one."""
    return tuple(in_turn([(c.used, c.id) for c in candidates if not c.pinned and not c.busy]))


def in_turn(uses: list[tuple[float, str]]) -> Iterator[str]:
    """Actors by their last use, least recently used first; takes the list for itself.

    Of hundreds mostly the first is wanted, so they are put in order one by one.
    """
    heapify(uses)
    while uses:
        yield heappop(uses)[1]


def select(
    candidates: Sequence[Candidate],
    *,
    now: float,
    row_bytes: int,
    older_than_s: float | None,
    nbytes: int | None,
    count: int | None,
) -> tuple[str, ...]:
    """The victims of an eviction by hand: old enough, and no more than asked for."""
    chosen = list(victims(candidates))
    if older_than_s is not None:
        used = {c.id: c.used for c in candidates}
        chosen = [key for key in chosen if now - used[key] >= older_than_s]
    limit = len(chosen)
    if count is not None:
        limit = min(limit, count)
    if nbytes is not None:
        limit = min(limit, -(-nbytes // row_bytes))
    return tuple(chosen[:limit])
