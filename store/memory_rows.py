"""What the catalog's twin keeps, and the steps that its changes are made of."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from statevisor.hypervisor.catalog_port import Guard, NewActor, Once, Origin
from statevisor.hypervisor.errors import (
    ActorExists,
    ActorNotFound,
    Conflict,
    NotFound,
    VersionNotFound,
)
from statevisor.hypervisor.records import (
    ActorRecord,
    ImageRef,
    OperationRecord,
    SegmentRecord,
    TurnRecord,
    VersionRecord,
)
from statevisor.hypervisor.vocab import Op, parse_handle
from statevisor.store.guards import (
    check_guard,
    check_key,
    result_of,
)
from statevisor.store.memory_history import History, MemoryVersion


def wall_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


@dataclass(slots=True)
class MemoryActor:
    """What of an actor changes, beside its record."""

    record: ActorRecord
    next_seq: int = 0
    parent: int | None = None  #: index of the version it was forked from
    turn: str | None = None  #: its open turn
    deleted: bool = False


class MemoryRows:
    """All rows, with what is asked of them again and again."""

    def __init__(
        self, *, now_us: Callable[[], int] = wall_us, keep_keys_us: int = 24 * 3600 * 10**6
    ) -> None:
        self._now_us = now_us
        self._keep_keys_us = keep_keys_us
        self._incarnation = 0
        self._builds: Mapping[str, str] = {}
        self._actors: dict[str, MemoryActor] = {}
        self._names: dict[str, str] = {}
        self._history = History()
        self._turns: dict[str, TurnRecord] = {}
        self._images: dict[str, ImageRef] = {}
        self._orphans: dict[str, int] = {}  #: images that no place names, and since when
        self._named_us: dict[tuple[int, int], int] = {}  #: since when a place has its image
        self._tags: dict[str, int] = {}
        self._last_us: dict[str, int] = {}  #: when an actor's newest version was made
        self._operations: dict[str, OperationRecord] = {}

    def _living(self, actor_id: str) -> MemoryActor:
        actor = self._actors.get(actor_id)
        if actor is None or actor.deleted:
            raise ActorNotFound(f"there is no actor {actor_id!r}")
        return actor

    def _live(self, key: str) -> MemoryActor:
        return self._living(self._names.get(key, key) if key not in self._actors else key)

    def _shown(self, actor: MemoryActor) -> ActorRecord:
        turn = self._turns.get(actor.turn or "")
        return replace(
            actor.record,
            parent=None if actor.parent is None else self._handle(actor.parent),
            position=actor.record.position if turn is None else turn.position,
        )

    def _name(self, actor_id: str) -> str:
        actor = self._actors[actor_id]
        return actor_id if actor.deleted else actor.record.name

    def _handle(self, number: int) -> str:
        version = self._history.versions[number]
        return f"{self._name(version.actor_id)}@{version.seq}"

    def _version(self, number: int) -> VersionRecord:
        row = self._history.versions[number]
        digest = self._history.checkpoints.get(
            (self._history.place(row.segment, row.position), row.position)
        )
        return VersionRecord(
            actor_id=row.actor_id,
            actor=self._name(row.actor_id),
            seq=row.seq,
            segment=row.segment,
            position=row.position,
            op=row.op,
            parents=tuple(self._handle(parent) for parent in row.parents),
            digest=digest,
            nbytes=None if digest is None else self._images[digest].nbytes,
            drift=row.drift,
            build=row.build,
            tags=tuple(sorted(tag for tag, number in self._tags.items() if number == row.id)),
            labels=row.labels,
            hidden=row.hidden,
            created_at=row.created_us,
            **row.why,
        )

    def _resolve(self, handle: str) -> int:
        parsed = parse_handle(handle)
        if parsed is None:
            if handle in self._tags:
                return self._tags[handle]
            raise VersionNotFound(f"there is no version {handle!r}")
        known = parsed.name in self._actors
        actor_id = parsed.name if known else self._names.get(parsed.name)
        for one in self._history.versions.values():
            if one.actor_id == actor_id and one.seq == parsed.seq:
                return one.id
        raise VersionNotFound(f"there is no version {handle!r}")

    def _near(self, number: int, direction: str) -> Iterator[int]:
        if direction == "ancestors":
            yield from self._history.versions[number].parents
        else:
            yield from (one.id for one in self._history.versions.values() if number in one.parents)

    def _reach(self, number: int) -> dict[int, int]:
        """How far each segment is part of a version's past, blended parents included."""
        reach: dict[int, int] = {}
        queue = [number]
        while queue:
            version = self._history.versions[queue.pop()]
            for here, limit in self._history.path(version.segment, version.position):
                if reach.get(here.id, -1) < limit:
                    reach[here.id] = limit
                    queue += [
                        parent
                        for one in self._history.versions.values()
                        if one.segment == here.id and one.op is Op.MUTATE
                        for parent in one.parents[1:]
                    ]
        return reach

    def _known(self, key: str) -> OperationRecord | None:
        found = self._operations.get(key)
        if found is not None and found.created_at < self._now_us() - self._keep_keys_us:
            return None
        return found

    def _turn(self, turn_id: str) -> TurnRecord:
        if turn_id not in self._turns:
            raise NotFound(f"there is no turn {turn_id!r}")
        return self._turns[turn_id]

    def _open(self, turn_id: str) -> TurnRecord:
        turn = self._turn(turn_id)
        if turn.finish is not None:
            raise Conflict(f"turn {turn_id} has ended")
        return turn

    # -- steps of a change -----------------------------------------------------------------------
    def _guarded(self, actor_id: str, guard: Guard, *, idle: bool = False) -> MemoryActor:
        self._check_once(guard.once)
        actor = self._living(actor_id)
        check_guard(actor.record, guard)
        if idle and actor.turn is not None:
            raise Conflict(f"{actor.record.name} has an open turn: {actor.turn}")
        return actor

    def _check_once(self, once: Once | None, *, turn: bool = False) -> None:
        if once is None:
            return
        known = self._known(once.key)
        broken = (
            known is not None
            and known.result is None
            and known.turn_id in self._turns
            and self._turns[known.turn_id].broken
        )
        check_key(known, once, resumable=turn and broken)

    def _check_new(self, children: Sequence[NewActor]) -> None:
        names = [new.name for new in children]
        for new in children:
            if new.name in self._names or names.count(new.name) > 1:
                raise ActorExists(f"an actor named {new.name!r} exists")
            if new.id in self._actors:
                raise ActorExists(f"an actor of id {new.id} exists or existed")

    def _check_origin(self, origin: Origin, home: SegmentRecord) -> None:
        if origin.position > self._history.end(home.id):
            raise VersionNotFound(f"position {origin.position} is beyond the end of this history")
        if origin.handle is None:
            return
        named = self._history.versions[self._resolve(origin.handle)]
        same = self._history.place(named.segment, named.position) == self._history.place(
            home.id, origin.position
        )
        if named.position != origin.position or not same:
            raise VersionNotFound(f"{origin.handle} is not at position {origin.position}")

    def _parent(self, origin: Origin, home: SegmentRecord) -> MemoryVersion:
        """The version a new segment begins at; a hidden anchor if there is none."""
        if origin.handle is not None:
            return self._history.versions[self._resolve(origin.handle)]
        for hidden in (False, True):
            found = self._history.at(home.id, origin.position, hidden=hidden)
            if found is not None:
                return found
        before = self._history.latest(home.id, origin.position)
        before = before or self._history.maker(home.id, origin.position)
        return self._add(
            home.actor_id,
            home.id,
            origin.position,
            Op.SNAPSHOT,
            parents=() if before is None else (before.id,),
            build=self._maker_build(home.id, origin.position),
            hidden=True,
        )

    def _maker_build(self, segment: int, position: int) -> str | None:
        maker = self._history.maker(segment, position)
        if maker is not None:
            return maker.build
        actor = self._actors[self._history.segment(segment).actor_id]
        return self._builds.get(actor.record.model)

    def _insert(self, new: NewActor, segment: int, position: int, base: int) -> None:
        now = self._now_us()
        self._names[new.name] = new.id
        self._actors[new.id] = MemoryActor(
            ActorRecord(
                id=new.id,
                name=new.name,
                model=new.model,
                segment=segment,
                position=position,
                base=base,
                head=0,
                generation=1,
                seed=new.seed,
                epoch=1,
                labels=dict(new.labels),
                created_at=now,
                updated_at=now,
            )
        )

    def _change(self, actor: MemoryActor, **changes: Any) -> None:
        actor.record = replace(
            actor.record,
            generation=actor.record.generation + 1,
            updated_at=self._now_us(),
            **changes,
        )

    def _add(
        self,
        actor_id: str,
        segment: int,
        position: int,
        op: Op,
        *,
        parents: tuple[int, ...] = (),
        build: str | None = None,
        hidden: bool = False,
        labels: Mapping[str, str] | None = None,
        why: Mapping[str, Any] | None = None,
    ) -> MemoryVersion:
        """Add a version; a visible one that is no snapshot becomes the head."""
        actor = self._actors[actor_id]
        if build is None and op in (Op.CREATE, Op.TURN):
            build = self._builds.get(actor.record.model)
        made = MemoryVersion(
            id=self._history.next_id,
            actor_id=actor_id,
            seq=actor.next_seq,
            segment=segment,
            position=position,
            op=op,
            parents=parents,
            build=build,
            drift=actor.record.drift,
            hidden=hidden,
            labels=dict(labels or {}),
            why=why or {},
            created_us=max(self._now_us(), self._last_us.get(actor_id, 0)),
        )
        self._history.add(made)
        self._last_us[actor_id] = made.created_us
        actor.next_seq += 1
        if op is not Op.SNAPSHOT:
            actor.record = replace(actor.record, head=made.seq)
        return made

    def _step(self, actor: MemoryActor, op: Op) -> MemoryVersion:
        """A version where the actor stands now."""
        here = actor.record
        parent = self._history.latest(here.segment, here.position)
        return self._add(
            here.id,
            here.segment,
            here.position,
            op,
            parents=() if parent is None else (parent.id,),
        )

    async def _done(
        self, actor_id: str, made: MemoryVersion, once: Once | None
    ) -> tuple[ActorRecord, VersionRecord]:
        records = self._shown(self._actors[actor_id]), self._version(made.id)
        self._remember(once, result_of(actor=records[0], version=records[1]))
        await asyncio.sleep(0)
        return records

    def _keep(self, segment: int, position: int, image: ImageRef, *, anew: bool = True) -> ImageRef:
        """Name an image as that of a place; the first one named stays, its newest bytes count."""
        kept = self._history.checkpoints.setdefault((segment, position), image.digest)
        self._named_us.setdefault((segment, position), self._now_us())
        fresh = anew or kept not in self._images or kept in self._orphans
        if kept == image.digest and fresh:
            self._images[image.digest] = image
            self._orphans.pop(image.digest, None)
        return self._images[kept]

    def _remember(
        self, once: Once | None, result: Mapping[str, Any] | None, *, turn_id: str | None = None
    ) -> None:
        if once is None:
            return
        self._operations[once.key] = OperationRecord(
            key=once.key,
            request=once.request,
            turn_id=turn_id,
            result=_json(result),
            created_at=self._now_us(),
        )

    def _settle(self, turn_id: str, result: Mapping[str, Any]) -> None:
        for key, one in self._operations.items():
            if one.turn_id == turn_id:
                self._operations[key] = replace(one, result=_json(result))


def _json(result: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A result as a database gives it back."""
    kept: Mapping[str, Any] | None = json.loads(json.dumps(result))
    return kept
