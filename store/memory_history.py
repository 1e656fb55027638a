"""The twin's rows: segments, tokens, versions and images of places, in plain lists.

It knows paths and places, nothing of actors' present fields.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from statevisor.hypervisor.errors import NotFound, VersionNotFound
from statevisor.hypervisor.records import SegmentRecord, TokenRun
from statevisor.hypervisor.vocab import Op


@dataclass(slots=True, kw_only=True)
class MemoryVersion:
    """One version; parents are indices into the list of versions."""

    id: int
    actor_id: str
    seq: int
    segment: int
    position: int
    op: Op
    parents: tuple[int, ...]
    build: str | None
    drift: bool
    hidden: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    why: Mapping[str, Any] = field(default_factory=dict)  #: rule, params, agent, ...
    created_us: int = 0


class History:
    """Everything that is never changed, only added to."""

    def __init__(self) -> None:
        self.segments: list[SegmentRecord] = []
        self.runs: dict[int, list[tuple[int, str, list[int]]]] = {}
        self.versions: dict[int, MemoryVersion] = {}
        self.gone: set[int] = set()  #: segments of actors that were swept
        self._made = 0
        self.checkpoints: dict[tuple[int, int], str] = {}
        self.touched: dict[int, tuple[int, ...] | None] = {}  #: layers a rooted segment's rule hit

    def segment(self, number: int) -> SegmentRecord:
        """Raises: NotFound."""
        if not 1 <= number <= len(self.segments) or number in self.gone:
            raise NotFound(f"there is no segment {number}")
        return self.segments[number - 1]

    def grow(
        self, actor_id: str, position: int, *, parent: int | None = None, rooted: bool = False
    ) -> SegmentRecord:
        """Add a segment."""
        depth = 0 if parent is None else self.segment(parent).depth + 1
        made = SegmentRecord(
            id=len(self.segments) + 1,
            actor_id=actor_id,
            parent=parent,
            position=position,
            rooted=rooted,
            depth=depth,
        )
        self.segments.append(made)
        self.runs[made.id] = []
        return made

    def path(self, segment: int, position: int) -> Iterator[tuple[SegmentRecord, int]]:
        """Segments of a path, nearest first, each with how far the path follows it."""
        here: SegmentRecord | None = self.segment(segment)
        limit = position
        while here is not None:
            if limit >= here.position:
                yield here, limit
            limit = min(limit, here.position)
            here = None if here.parent is None else self.segment(here.parent)

    def find_home(self, segment: int, position: int) -> SegmentRecord | None:
        """The segment that holds the last event at a place; None if nothing leads there."""
        here = next((here for here, _ in self.path(segment, position)), None)
        if here is not None and here.parent is None and not here.rooted and here.position > 0:
            return None
        return here

    def home(self, segment: int, position: int) -> SegmentRecord:
        """As `find_home`. Raises: VersionNotFound."""
        here = self.find_home(segment, position)
        if here is None:
            raise VersionNotFound(f"the state at position {position} is not part of this history")
        return here

    def place(self, segment: int, position: int) -> int:
        """The segment under which the image of a place is kept: forks share their origin's."""
        here = self.home(segment, position)
        while here.parent is not None and here.position == position and not here.rooted:
            here = self.home(here.parent, position)
        return here.id

    def root(self, segment: int) -> SegmentRecord:
        """Where a path begins."""
        here = self.segment(segment)
        while here.parent is not None:
            here = self.segment(here.parent)
        return here

    # -- tokens ----------------------------------------------------------------------------------
    def append(self, segment: int, position: int, kind: str, tokens: Sequence[int]) -> None:
        """Add tokens at the end of a segment."""
        if tokens:
            self.runs[segment].append((position, kind, list(tokens)))

    def cut(self, segment: int, position: int) -> None:
        """Drop what lies at and beyond a position."""
        kept = [(at, kind, tokens[: position - at]) for at, kind, tokens in self.runs[segment]]
        self.runs[segment] = [run for run in kept if run[0] < position]

    def beyond(self, segment: int, position: int) -> int | None:
        """Where a version or an image stands beyond a position of this very segment, if any."""
        versions = [one.position for one in self.versions.values() if one.segment == segment]
        images = [at for (kept, at) in self.checkpoints if kept == segment]
        return next((at for at in (*versions, *images) if at > position), None)

    def end(self, segment: int) -> int:
        """The position behind a segment's last token."""
        runs = self.runs[segment]
        return runs[-1][0] + len(runs[-1][2]) if runs else self.segment(segment).position

    def transcript(self, segment: int, start: int, stop: int) -> tuple[TokenRun, ...]:
        """Tokens of a path; neighbours of one kind are one run."""
        pieces: list[tuple[int, str, list[int]]] = []
        for here, limit in self.path(segment, stop):
            for at, kind, tokens in self.runs[here.id]:
                low, high = max(at, start), min(at + len(tokens), limit)
                if low < high:
                    pieces.append((low, kind, tokens[low - at : high - at]))
        pieces.sort()
        merged: list[tuple[int, str, list[int]]] = []
        for at, kind, tokens in pieces:
            if merged and merged[-1][1] == kind and merged[-1][0] + len(merged[-1][2]) == at:
                merged[-1][2].extend(tokens)
            else:
                merged.append((at, kind, tokens))
        return tuple(TokenRun(position=at, kind=kind, tokens=tuple(ts)) for at, kind, ts in merged)

    # -- versions --------------------------------------------------------------------------------
    def add(self, made: MemoryVersion) -> None:
        """Add a version whose id is `next_id`."""
        self.versions[made.id] = made
        self._made += 1

    @property
    def next_id(self) -> int:
        """The id of the next version; never used again."""
        return self._made

    def needed(self, actor_id: str, beside: Collection[str] = ()) -> bool:
        """Whether another actor's history goes through this one's, some left out."""
        others = {actor_id, *beside}
        return any(
            self.segments[here.parent - 1].actor_id == actor_id
            for here in self.segments
            if here.id not in self.gone and here.parent is not None and here.actor_id not in others
        ) or any(
            self.versions[parent].actor_id == actor_id
            for one in self.versions.values()
            if one.actor_id not in others
            for parent in one.parents
        )

    def purge(self, actor_id: str) -> None:
        """Take out an actor's segments and versions."""
        self.gone |= {here.id for here in self.segments if here.actor_id == actor_id}
        self.versions = {
            number: one for number, one in self.versions.items() if one.actor_id != actor_id
        }
        self.checkpoints = {
            place: digest for place, digest in self.checkpoints.items() if place[0] not in self.gone
        }

    def latest(self, segment: int, position: int) -> MemoryVersion | None:
        """The newest visible version at or before a place of a path."""
        for here, limit in self.path(segment, position):
            found = [
                one
                for one in self.versions.values()
                if one.segment == here.id and one.position <= limit and not one.hidden
            ]
            if found:
                return max(found, key=lambda one: (one.position, one.id))
        return None

    def at(self, segment: int, position: int, *, hidden: bool = False) -> MemoryVersion | None:
        """The newest version at exactly a place of a path."""
        for here, _ in self.path(segment, position):
            found = [
                one
                for one in self.versions.values()
                if one.segment == here.id and one.position == position and one.hidden == hidden
            ]
            if found:
                return found[-1]
            if here.position < position or here.rooted:
                break
        return None

    def maker(self, segment: int, position: int) -> MemoryVersion | None:
        """The version whose making computed the state at a place of this very segment."""
        found = [
            one
            for one in self.versions.values()
            if one.segment == segment and one.position >= position and not one.hidden
        ]
        return min(found, key=lambda one: (one.position, one.id)) if found else None

    # -- images of places ------------------------------------------------------------------------
    def nearest(self, segment: int, position: int) -> tuple[int, str] | None:
        """Position and digest of the last image at or before a place. Raises: VersionNotFound."""
        self.home(segment, position)
        for here, limit in self.path(segment, position):
            found = [at for (kept, at) in self.checkpoints if kept == here.id and at <= limit]
            if found:
                return max(found), self.checkpoints[here.id, max(found)]
            if here.rooted:
                raise VersionNotFound(f"the image that segment {here.id} begins with is missing")
        return None
