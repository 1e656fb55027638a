"""Where new segments begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam

from statevisor.hypervisor.catalog_port import Origin
from statevisor.hypervisor.errors import VersionNotFound
from statevisor.hypervisor.records import SegmentRecord
from statevisor.hypervisor.vocab import Op, parse_handle
from statevisor.store import actors, broods, builds, hatching, making, runs, segments, versions
from statevisor.store.prepared import Prepared
from statevisor.store.scope import Scope
from statevisor.store.segments import Segment
from statevisor.store.tables import actor, segment, version
from statevisor.store.versions import Made

#: Versions, each with its segment and what forks take from its actor.
_ROWS = versions.MADE.add_columns(
    segment.c.id.label("here"),
    segment.c.actor_id,
    segment.c.parent,
    segment.c.position.label("begins"),
    segment.c.rooted,
    segment.c.depth,
    segment.c.place.label("begins_place"),
    actor.c.base,
    actor.c.drift.label("actor_drift"),
).join(segment, segment.c.id == version.c.segment)
_NAMED = Prepared(_ROWS.where(*versions.BY_HANDLE))
_NEWEST = Prepared(
    _ROWS.where(
        version.c.segment == bindparam("at"),
        version.c.position == bindparam("top"),
        version.c.hidden.is_(False),
    )
    .order_by(version.c.id.desc())
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class Start:
    """What a new segment begins with."""

    here: Segment  #: holds the last event before it
    parent: Made
    base: int  #: of that segment's actor
    drift: bool  #: as well


def start(scope: Scope, origin: Origin) -> Start:
    """Where a new segment begins; a hidden anchor is made if no version is there.

    Raises: NotFound; VersionNotFound (also if the named version is not at that place).
    """
    row = _standing(scope, origin)
    if row is None and _hatched(scope, origin):
        row = _standing(scope, origin)
    if row is not None:
        return _as_start(row)
    here = home(scope, origin)
    source = actors.heritage(scope.conn, here.record.actor_id)
    return Start(here, _parent(scope, origin, here), source.base, source.drift)


def home(scope: Scope, origin: Origin) -> Segment:
    """The segment that holds an origin's last event, checked. Raises: NotFound, VersionNotFound."""
    here = segments.home(scope.conn, origin.segment, origin.position)
    if here.child is not None:
        hatching.hatch(scope, here.child)
        here = segments.get(scope.conn, here.record.id)
    # where a version is named, `parent` finds out whether it stands there
    bare = origin.handle is None and origin.position > here.record.position
    if bare and origin.position > _end(scope, here):
        raise VersionNotFound(f"position {origin.position} is beyond the end of this history")
    return here


def before(scope: Scope, here: Segment, position: int) -> tuple[int, ...]:
    """The version that one at this place follows: the last one on the way, or else the first."""
    found = versions.latest(scope.conn, here.record.id, position)
    if found is None:
        found = versions.maker(scope.conn, here.record.id, position)
    return () if found is None else (found,)


def build(scope: Scope, here: Segment, position: int) -> int | None:
    """The build that computed the state at a place."""
    maker = versions.maker(scope.conn, here.record.id, position)
    if maker is not None:
        return versions.made(scope.conn, maker).build
    return builds.of_model(scope, actors.heritage(scope.conn, here.record.actor_id).model)


def _standing(scope: Scope, origin: Origin) -> Any | None:
    """The version asked for, if it stands on the origin's very segment: nearly every one does."""
    if origin.handle is None:
        return _NEWEST.first(scope.conn, {"at": origin.segment, "top": origin.position})
    parsed = parse_handle(origin.handle)
    if parsed is None:
        return None
    row = _NAMED.first(scope.conn, {"key": parsed.name, "seq": parsed.seq})
    place = (origin.segment, origin.position)
    return row if row is not None and (row.here, row.position) == place else None


def _hatched(scope: Scope, origin: Origin) -> bool:
    """Give the actors rows that an origin leads to and that have none; says whether one had none.

    Its segment's is one of them, its version's may be another.
    """
    found = hatching.by_segment(scope, origin.segment)
    parsed = None if origin.handle is None else parse_handle(origin.handle)
    if parsed is not None and parsed.seq == 0:
        child = broods.find(scope.conn, parsed.name)
        if child is not None:
            hatching.hatch(scope, child)
            found = True
    return found


def _as_start(row: Any) -> Start:
    record = SegmentRecord(
        id=row.here,
        actor_id=row.actor_id,
        parent=row.parent,
        position=row.begins,
        rooted=row.rooted,
        depth=row.depth,
    )
    place = row.here if row.begins_place is None else row.begins_place
    return Start(Segment(record, place), versions.as_made(row), row.base, row.actor_drift)


def _parent(scope: Scope, origin: Origin, here: Segment) -> Made:
    """The version that a new segment begins at; a hidden anchor is made if there is none.

    Raises: VersionNotFound, if the named version is not at that place.
    """
    conn, position = scope.conn, origin.position
    if origin.handle is not None:
        named = versions.named(conn, origin.handle)
        if (named.place, named.position) != (here.place_of(position), position):
            raise VersionNotFound(f"{origin.handle} is not at position {position}")
        return named
    for hidden in (False, True):
        found = versions.at(conn, here, position, hidden=hidden)
        if found is not None:
            return versions.made(conn, found)
    return versions.made(conn, _anchor(scope, here, position))


def _anchor(scope: Scope, here: Segment, position: int) -> int:
    """A version that nobody asked for; its actor's head and generation stay."""
    owner = here.record.actor_id
    seq, epoch, drift = actors.reserve_seq(scope.conn, owner)
    return making.add(
        scope,
        actor_id=owner,
        epoch=epoch,
        seq=seq,
        segment=here,
        position=position,
        op=Op.SNAPSHOT,
        parents=before(scope, here, position),
        build=build(scope, here, position),
        drift=drift,
        hidden=True,
    )


def _end(scope: Scope, here: Segment) -> int:
    """How far a segment's tokens reach, journalled ones of this very group included."""
    for tail in scope.tails.all():
        if tail.segment == here.record.id:
            return tail.end
    return runs.end(scope.conn, here.record.id) or here.record.position
