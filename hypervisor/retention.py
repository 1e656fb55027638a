"""Which images of one segment are worth their room: a pure rule, applied by gc.

An image that a replay can make again is a cache. The rule keeps all of them over the last `dense`
positions of a segment and one for every power of two before that, so that N tokens of history
need log2(N) images. Applied again and again while the segment grows it keeps what one application
at the end would leave near at hand: before every image that was dropped one is kept, at most twice
as far from it as it lies from the end.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Final

DENSE: Final = 8192  #: positions behind the newest image where every image stays


class Keep(StrEnum):
    """Why an image stays."""

    ROOTED = "rooted"  #: no journal leads to it
    NAMED = "named"  #: a snapshot or a tag stands at it
    BASE = "base"  #: an actor without an image of its own begins here
    BUILD = "build"  #: this build cannot make it again: another made it, or it promises no bits
    PINNED = "pinned"  #: its actor is pinned
    YOUNG = "young"  #: younger than the grace
    RECENT = "recent"  #: near the newest of its segment
    SPARSE = "sparse"  #: the one of its power of two


def surplus(
    positions: Collection[int], fixed: Collection[int] = (), dense: int = DENSE
) -> frozenset[int]:
    """The positions of one segment's images that may go; `fixed` ones stay, `dense` is at least 1.

    At distance d from the newest, beyond `dense`, the positions are divided into cells of the
    greatest power of two below d, counted from 0; the oldest image of a cell stays. Cells only
    grow, and the oldest of a large one was the oldest of the small one it was in before.
    """
    newest = max(positions, default=0)
    oldest: dict[tuple[int, int], int] = {}
    for position in sorted(positions):
        if newest - position > dense:
            oldest.setdefault(_cell(position, newest - position), position)
    kept = {*oldest.values(), *fixed}
    return frozenset(p for p in positions if newest - p > dense and p not in kept)


def _cell(position: int, distance: int) -> tuple[int, int]:
    size = 1 << (distance - 1).bit_length() - 1
    return size, position // size
