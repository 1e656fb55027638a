"""Rules of history: which segment a position belongs to, which state two places share.

A path is the chain of segments from the root to the one an actor stands on, root first.
"""

from __future__ import annotations

from collections.abc import Sequence

from statevisor.hypervisor.catalog_port import Origin
from statevisor.hypervisor.errors import InvalidRequest
from statevisor.hypervisor.records import SegmentRecord

Path = Sequence[SegmentRecord]


def place(path: Path, position: int) -> tuple[int, int]:
    """The segment that holds the last event at `position`: a mutation there counts as later."""
    for segment in reversed(path):
        if position >= segment.position:
            return segment.id, position
    raise InvalidRequest(f"position {position} is before the beginning of this history")


def same_state(path: Path, absorbed: int) -> tuple[int, int]:
    """A key that two paths share exactly when their states at `absorbed` are the same bytes.

    A fork or a rollback changes no state, so the state at its origin belongs to the older segment;
    a rooted segment begins with a state of its own.
    """
    position = absorbed + 1
    for segment in reversed(path):
        if position > segment.position or (segment.rooted and position == segment.position):
            return segment.id, absorbed
        if segment.rooted and segment.position == 0:
            return segment.id, absorbed
    return path[0].id, absorbed


def covers(path: Path, segment: int, position: int) -> bool:
    """Whether a place lies on a path: an ancestor's segment counts up to where the path left it."""
    for index, one in enumerate(path):
        if one.id == segment:
            return index + 1 == len(path) or position <= path[index + 1].position
    return False


def origin(path: Path, length: int, position: int) -> Origin:
    """A bare position of an actor's past as the origin of a new segment. Raises: InvalidRequest."""
    if not 0 <= position <= length:
        raise InvalidRequest(
            f"position {position} is not in this history", hint=f"It covers 0..{length}."
        )
    segment, at = place(path, position)
    return Origin(segment=segment, position=at, handle=None)
