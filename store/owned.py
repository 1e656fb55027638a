"""Segments of actors, found by their versions: an index by actor would cost every fork a page.

Every segment has a version of its actor on it, but for the tokens below an import, which lie right
under a segment that has one. No version stands on a segment of another's.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import ColumnElement, CompoundSelect, select

from statevisor.store.tables import segment, version

_above, _below = segment.alias("above"), segment.alias("below")


def segments_of(whose: Callable[[ColumnElement[str]], ColumnElement[bool]]) -> CompoundSelect[int]:
    """Ids of the segments of those actors whose id meets a condition."""
    under = (
        select(_below.c.id)
        .join(_above, _above.c.parent == _below.c.id)
        .join(version, version.c.segment == _above.c.id)
        .where(whose(version.c.actor_id), _below.c.actor_id == version.c.actor_id)
    )
    return select(version.c.segment.label("id")).where(whose(version.c.actor_id)).union(under)
