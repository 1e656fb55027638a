"""The catalog's twin: the same promises as `store/catalog.py`, in dicts, lost with the process.

An effect takes place at once and whole; then the event loop gets a turn before the caller goes on,
as it does while the real catalog commits.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from statevisor.hypervisor.errors import (
    ActorExists,
    ActorNotFound,
    ActorQuarantined,
    Conflict,
    NotFound,
    StatevisorError,
    VersionNotFound,
)
from statevisor.hypervisor.ports import (
    ActorQuery,
    Guard,
    ImageMeta,
    JournalEntry,
    NewActor,
    Once,
    Origin,
    Provenance,
)
from statevisor.hypervisor.records import (
    ActorRecord,
    ImageRef,
    OperationRecord,
    SegmentRecord,
    TokenRun,
    TurnRecord,
    VersionRecord,
)
from statevisor.hypervisor.vocab import FinishReason, Op, parse_handle
from statevisor.store.guards import (
    check_guard,
    check_incarnation,
    check_key,
    check_start,
    result_of,
)
from statevisor.store.memory_history import History, MemoryVersion


def wall_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


@dataclass(slots=True)
class _Actor:
    """What of an actor changes, beside its record."""

    record: ActorRecord
    next_seq: int = 0
    parent: int | None = None  #: index of the version it was forked from
    turn: str | None = None  #: its open turn
    deleted: bool = False


class MemoryCatalog:
    """A `Catalog` without a file; two values of it share nothing."""

    def __init__(
        self, *, now_us: Callable[[], int] = wall_us, keep_keys_us: int = 24 * 3600 * 10**6
    ) -> None:
        self._now_us = now_us
        self._keep_keys_us = keep_keys_us
        self._incarnation = 0
        self._builds: Mapping[str, str] = {}
        self._actors: dict[str, _Actor] = {}
        self._names: dict[str, str] = {}
        self._history = History()
        self._turns: dict[str, TurnRecord] = {}
        self._images: dict[str, ImageRef] = {}
        self._orphans: dict[str, int] = {}  #: images that no place names, and since when
        self._tags: dict[str, int] = {}
        self._operations: dict[str, OperationRecord] = {}

    async def close(self) -> None:
        """Nothing to close; the rows stay, as a file would."""

    def use_builds(self, builds: Mapping[str, str]) -> None:
        """Take the build of each model for the versions made from now on."""
        self._builds = dict(builds)

    # -- reading ---------------------------------------------------------------------------------
    async def actor(self, key: str) -> ActorRecord:
        return self._shown(self._live(key))

    async def actors(self, query: ActorQuery) -> tuple[tuple[ActorRecord, ...], bool]:
        found = [
            one.record
            for _, one in sorted(self._actors.items())
            if not one.deleted and _matches(one.record, query)
        ]
        page = found[: query.limit]
        return tuple(self._shown(self._actors[one.id]) for one in page), len(found) > len(page)

    async def count_actors(self) -> int:
        return len(self._names)

    async def segment(self, segment: int) -> SegmentRecord:
        return self._history.segment(segment)

    async def transcript(self, segment: int, start: int, stop: int) -> tuple[TokenRun, ...]:
        return self._history.transcript(segment, start, stop)

    async def version(self, handle: str) -> VersionRecord:
        return self._version(self._resolve(handle))

    async def version_at(self, segment: int, position: int) -> VersionRecord | None:
        found = self._history.at(segment, position)
        return None if found is None else self._version(found.id)

    async def versions(
        self, actor_id: str, after: int | None, limit: int
    ) -> tuple[tuple[VersionRecord, ...], bool]:
        self._living(actor_id)
        found = [
            one
            for one in self._history.versions.values()
            if one.actor_id == actor_id
            and not one.hidden
            and one.seq > (-1 if after is None else after)
        ]
        return tuple(self._version(one.id) for one in found[:limit]), len(found) > limit

    async def lineage(
        self, handle: str, direction: str, depth: int, limit: int
    ) -> tuple[tuple[VersionRecord, ...], tuple[tuple[str, str, Op], ...], bool]:
        start = self._resolve(handle)
        nodes, cut = {start: 0}, False
        for wanted in ("ancestors", "descendants"):
            if direction in (wanted, "both"):
                queue = deque([(start, 0)])
                while queue:
                    here, hops = queue.popleft()
                    for near in self._near(here, wanted):
                        if near in nodes:
                            continue
                        if hops == depth or len(nodes) == limit:
                            cut = True
                            continue
                        nodes[near] = hops + 1
                        queue.append((near, hops + 1))
        records = {number: self._version(number) for number in nodes}
        edges = tuple(
            (records[parent].handle, records[child].handle, records[child].op)
            for child in nodes
            for parent in dict.fromkeys(self._history.versions[child].parents)
            if parent in nodes
        )
        return tuple(records.values()), edges, cut

    async def common_ancestor(self, a: str, b: str) -> VersionRecord | None:
        older, newer = sorted((self._resolve(a), self._resolve(b)))
        row, reach = self._history.versions[older], self._reach(newer)
        if row.position <= reach.get(row.segment, -1):
            return self._version(older)
        mine = self._reach(older)
        shared = [
            one
            for one in self._history.versions.values()
            if one.id < older
            and one.position <= min(reach.get(one.segment, -1), mine.get(one.segment, -1))
        ]
        found = max(
            shared,
            key=lambda one: (self._history.segment(one.segment).depth, one.position, one.id),
            default=None,
        )
        return None if found is None else self._version(found.id)

    async def blame(self, handle: str, layer: int) -> VersionRecord | None:
        version = self._history.versions[self._resolve(handle)]
        for here, _ in self._history.path(version.segment, version.position):
            layers = self._history.touched.get(here.id, ())
            if layers is None or layer in layers:
                return next(
                    self._version(one.id)
                    for one in self._history.versions.values()
                    if one.segment == here.id and one.op is Op.MUTATE
                )
        return None

    async def nearest_image(self, segment: int, position: int) -> tuple[int, ImageRef] | None:
        found = self._history.nearest(segment, position)
        return None if found is None else (found[0], self._images[found[1]])

    async def image(self, digest: str) -> ImageRef | None:
        return None if digest in self._orphans else self._images.get(digest)

    async def image_at(self, segment: int, position: int) -> ImageRef | None:
        if self._history.find_home(segment, position) is None:
            return None
        digest = self._history.checkpoints.get((self._history.place(segment, position), position))
        return None if digest is None else self._images[digest]

    async def live_images(self) -> tuple[ImageRef, ...]:
        return tuple(one for _, one in sorted(self._images.items()))

    async def turn(self, turn_id: str) -> TurnRecord:
        return self._turn(turn_id)

    async def operation(self, key: str) -> OperationRecord | None:
        return self._known(key)

    # -- changing --------------------------------------------------------------------------------
    async def create(
        self, new: NewActor, prompt: Sequence[int], *, once: Once | None = None
    ) -> ActorRecord:
        self._check_once(once)
        self._check_new((new,))
        segment = self._history.grow(new.id, 0)
        self._history.append(segment.id, 0, "prompt", prompt)
        self._insert(new, segment.id, len(prompt), 0)
        self._add(new.id, segment.id, len(prompt), Op.CREATE)
        made = self._shown(self._actors[new.id])
        self._remember(once, result_of(actor=made))
        await asyncio.sleep(0)
        return made

    async def fork(
        self,
        children: Sequence[NewActor],
        origin: Origin,
        *,
        prompt: Sequence[int] = (),
        once: Once | None = None,
    ) -> tuple[ActorRecord, ...]:
        self._check_once(once)
        home = self._history.home(origin.segment, origin.position)
        self._check_origin(origin, home)
        self._check_new(children)
        parent = self._parent(origin, home)
        source = self._actors[home.actor_id].record
        base = self._history.root(home.id).position
        for new in children:
            segment = self._history.grow(new.id, origin.position, parent=home.id)
            self._insert(new, segment.id, origin.position + len(prompt), base)
            child = self._actors[new.id]
            child.parent = parent.id
            child.record = replace(child.record, drift=source.drift or parent.drift)
            made = self._add(
                new.id,
                segment.id,
                origin.position,
                Op.FORK,
                parents=(parent.id,),
                build=parent.build,
            )
            if prompt:
                self._history.append(segment.id, origin.position, "prompt", prompt)
                self._add(
                    new.id,
                    segment.id,
                    origin.position + len(prompt),
                    Op.TURN,
                    parents=(made.id,),
                )
        records = tuple(self._shown(self._actors[new.id]) for new in children)
        self._remember(once, result_of(actors=records))
        await asyncio.sleep(0)
        return records

    async def import_image(
        self,
        new: NewActor,
        image: ImageRef,
        meta: ImageMeta,
        *,
        agent: str | None = None,
        once: Once | None = None,
    ) -> tuple[ActorRecord, VersionRecord]:
        self._check_once(once)
        self._check_new((new,))
        base = meta.position - len(meta.pending)
        before: int | None = None
        if meta.pending:
            before = self._history.grow(new.id, base).id
            self._history.append(before, base, "prompt", meta.pending)
        segment = self._history.grow(new.id, meta.position, parent=before, rooted=True)
        self._insert(new, segment.id, meta.position, base)
        self._keep(segment.id, meta.position, image)
        made = self._add(
            new.id, segment.id, meta.position, Op.IMPORT, build=image.build, why={"agent": agent}
        )
        return await self._done(new.id, made, once)

    async def update(
        self,
        actor_id: str,
        *,
        guard: Guard,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        pinned: bool | None = None,
        ttl_s: int | None = None,
        seed: int | None = None,
        drift: bool | None = None,
    ) -> ActorRecord:
        actor = self._guarded(actor_id, guard)
        if name is not None and self._names.get(name, actor_id) != actor_id:
            raise ActorExists(f"an actor named {name!r} exists")
        given = {
            "name": name,
            "labels": None if labels is None else dict(labels),
            "pinned": pinned,
            "ttl_s": ttl_s,
            "seed": seed,
            "drift": drift,
        }
        changes: dict[str, Any] = {key: one for key, one in given.items() if one is not None}
        if ttl_s == 0:
            changes["ttl_s"] = None
        if name is not None:
            del self._names[actor.record.name]
            self._names[name] = actor_id
        self._change(actor, **changes)
        made = self._shown(actor)
        self._remember(guard.once, result_of(actor=made))
        await asyncio.sleep(0)
        return made

    async def delete(self, actor_id: str, *, guard: Guard) -> None:
        actor = self._guarded(actor_id, guard, idle=True)
        del self._names[actor.record.name]
        self._tags = {
            tag: number
            for tag, number in self._tags.items()
            if self._history.versions[number].actor_id != actor_id
        }
        actor.deleted = True
        self._change(actor)
        self._remember(guard.once, {})
        await asyncio.sleep(0)

    async def quarantine(self, actor_id: str, reason: str | None, *, guard: Guard) -> ActorRecord:
        actor = self._guarded(actor_id, guard)
        self._change(actor, quarantine=reason)
        made = self._shown(actor)
        self._remember(guard.once, result_of(actor=made))
        await asyncio.sleep(0)
        return made

    async def begin_turn(
        self, turn: TurnRecord, prompt: Sequence[int], *, guard: Guard
    ) -> ActorRecord:
        self._check_once(guard.once, turn=True)
        actor = self._living(turn.actor_id)
        check_guard(actor.record, guard)
        if actor.turn is not None:
            raise Conflict(f"{actor.record.name} has an open turn: {actor.turn}")
        if actor.record.quarantine is not None:
            raise ActorQuarantined(actor.record.quarantine)
        if turn.id in self._turns:
            raise Conflict(f"there is a turn {turn.id} already")
        check_start(actor.record, turn, prompt)
        self._history.append(turn.segment, actor.record.position, "prompt", prompt)
        position = actor.record.position + len(prompt)
        self._turns[turn.id] = replace(turn, position=position, finish=None, broken=False)
        actor.turn = turn.id
        self._change(actor, position=position)
        self._remember(guard.once, None, turn_id=turn.id)
        await asyncio.sleep(0)
        return self._shown(actor)

    async def journal(self, entries: Sequence[JournalEntry], *, incarnation: int) -> None:
        check_incarnation(self._incarnation, incarnation)
        ends: dict[str, int] = {}
        for entry in entries:
            turn = self._open(entry.turn_id)
            end = ends.get(turn.id, turn.position)
            if (entry.segment, entry.position) != (turn.segment, end):
                raise StatevisorError(f"turn {turn.id} goes on at {end}, not {entry.position}")
            ends[turn.id] = end + len(entry.tokens)
        for entry in entries:
            turn = self._turns[entry.turn_id]
            self._history.append(turn.segment, entry.position, "generated", entry.tokens)
            self._turns[turn.id] = replace(turn, position=entry.position + len(entry.tokens))
        await asyncio.sleep(0)

    async def end_turn(
        self,
        turn_id: str,
        *,
        finish: FinishReason,
        position: int,
        text: str,
        result: Mapping[str, Any] | None,
        guard: Guard,
        broken: bool = False,
    ) -> tuple[ActorRecord, VersionRecord]:
        turn = self._open(turn_id)
        actor = self._live(turn.actor_id)
        check_guard(actor.record, guard)
        if not actor.record.position <= position <= turn.position:
            raise StatevisorError(
                f"turn {turn_id} cannot end at {position}: "
                f"it covers {actor.record.position}..{turn.position}"
            )
        self._history.cut(turn.segment, position)
        self._turns[turn_id] = replace(
            turn, position=position, finish=finish, text=text, broken=broken
        )
        actor.turn = None
        self._change(actor, position=position)
        made = self._step(actor, Op.TURN)
        if result is not None:
            self._settle(turn_id, result)
        await asyncio.sleep(0)
        return self._shown(actor), self._version(made.id)

    async def open_turns(self) -> tuple[TurnRecord, ...]:
        return tuple(turn for _, turn in sorted(self._turns.items()) if turn.finish is None)

    async def snapshot(
        self,
        actor_id: str,
        segment: int,
        position: int,
        *,
        tag: str | None,
        labels: Mapping[str, str],
        guard: Guard,
    ) -> VersionRecord:
        self._guarded(actor_id, guard)
        home = self._history.home(segment, position)
        self._check_origin(Origin(segment=segment, position=position, handle=None), home)
        parent = self._history.latest(home.id, position) or self._history.maker(home.id, position)
        made = self._add(
            actor_id,
            home.id,
            position,
            Op.SNAPSHOT,
            parents=() if parent is None else (parent.id,),
            build=self._maker_build(home.id, position),
            labels=labels,
        )
        if tag is not None:
            self._tags[tag] = made.id
        record = self._version(made.id)
        self._remember(guard.once, result_of(version=record))
        await asyncio.sleep(0)
        return record

    async def mutate(
        self, actor_id: str, image: ImageRef, why: Provenance, *, guard: Guard
    ) -> tuple[ActorRecord, VersionRecord]:
        actor = self._guarded(actor_id, guard, idle=True)
        here = actor.record
        main = self._history.latest(here.segment, here.position)
        merged = tuple(self._resolve(handle) for handle in why.parents)
        drift = here.drift or any(self._history.versions[one].drift for one in merged)
        segment = self._history.grow(actor_id, here.position, parent=here.segment, rooted=True)
        layers = (why.select or {}).get("layers")
        self._history.touched[segment.id] = None if layers is None else tuple(layers)
        self._keep(segment.id, here.position, image)
        self._change(actor, segment=segment.id, drift=drift)
        made = self._add(
            actor_id,
            segment.id,
            here.position,
            Op.MUTATE,
            parents=(() if main is None else (main.id,)) + merged,
            build=image.build,
            why={
                "rule": why.rule,
                "rule_version": why.rule_version,
                "params": dict(why.params or {}),
                "select": dict(why.select or {}),
                "agent": why.agent,
                "reason": why.reason,
                "before": why.before,
            },
        )
        return await self._done(actor_id, made, guard.once)

    async def rollback(
        self, actor_id: str, origin: Origin, *, seed: int | None, guard: Guard
    ) -> tuple[ActorRecord, VersionRecord]:
        actor = self._guarded(actor_id, guard, idle=True)
        home = self._history.home(origin.segment, origin.position)
        self._check_origin(origin, home)
        parent = self._parent(origin, home)
        segment = self._history.grow(actor_id, origin.position, parent=home.id)
        self._change(
            actor,
            segment=segment.id,
            position=origin.position,
            base=self._history.root(home.id).position,
            quarantine=None,
            drift=actor.record.drift or parent.drift,
            seed=actor.record.seed if seed is None else seed,
        )
        made = self._add(
            actor_id,
            segment.id,
            origin.position,
            Op.ROLLBACK,
            parents=(parent.id,),
            build=parent.build,
        )
        return await self._done(actor_id, made, guard.once)

    async def add_image(self, segment: int, position: int, image: ImageRef) -> None:
        self._keep(self._history.place(segment, position), position, image)
        await asyncio.sleep(0)

    async def remember(self, once: Once, result: Mapping[str, Any]) -> None:
        known = self._known(once.key)
        check_key(known, once, resumable=known is not None and known.result is None)
        self._remember(once, result, turn_id=None if known is None else known.turn_id)
        await asyncio.sleep(0)

    async def sweep(self, *, grace_us: int) -> tuple[ImageRef, ...]:
        while dead := [
            actor_id
            for actor_id, one in self._actors.items()
            if one.deleted and not self._history.needed(actor_id)
        ]:
            for actor_id in dead:
                self._history.purge(actor_id)
                del self._actors[actor_id]
        self._turns = {
            key: turn for key, turn in self._turns.items() if turn.actor_id in self._actors
        }
        now, named = self._now_us(), set(self._history.checkpoints.values())
        for digest in self._images.keys() - named:
            self._orphans.setdefault(digest, now)
        freed = sorted(key for key, since in self._orphans.items() if since < now - grace_us)
        for digest in freed:
            del self._orphans[digest]
        result = tuple(self._images.pop(digest) for digest in freed)
        await asyncio.sleep(0)
        return result

    async def claim(self, owner: str) -> int:
        self._incarnation += 1
        for actor in self._actors.values():
            if not actor.deleted:
                actor.record = replace(actor.record, epoch=actor.record.epoch + 1)
        await asyncio.sleep(0)
        return self._incarnation

    # -- rows ------------------------------------------------------------------------------------
    def _living(self, actor_id: str) -> _Actor:
        actor = self._actors.get(actor_id)
        if actor is None or actor.deleted:
            raise ActorNotFound(f"there is no actor {actor_id!r}")
        return actor

    def _live(self, key: str) -> _Actor:
        return self._living(self._names.get(key, key) if key not in self._actors else key)

    def _shown(self, actor: _Actor) -> ActorRecord:
        turn = self._turns.get(actor.turn or "")
        return replace(
            actor.record,
            parent=None if actor.parent is None else self._handle(actor.parent),
            position=actor.record.position if turn is None else turn.position,
        )

    def _name(self, actor_id: str) -> str:
        actor = self._actors[actor_id]
        same = [one for one in self._actors.values() if one.record.name == actor.record.name]
        return actor_id if actor.deleted and len(same) > 1 else actor.record.name

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
    def _guarded(self, actor_id: str, guard: Guard, *, idle: bool = False) -> _Actor:
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
        self._actors[new.id] = _Actor(
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

    def _change(self, actor: _Actor, **changes: Any) -> None:
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
            created_us=self._now_us(),
        )
        self._history.add(made)
        actor.next_seq += 1
        if op is not Op.SNAPSHOT:
            actor.record = replace(actor.record, head=made.seq)
        return made

    def _step(self, actor: _Actor, op: Op) -> MemoryVersion:
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

    def _keep(self, segment: int, position: int, image: ImageRef) -> None:
        """Name an image as that of a place; the first one named stays, its newest bytes count."""
        kept = self._history.checkpoints.setdefault((segment, position), image.digest)
        if kept == image.digest:
            self._images[image.digest] = image
            self._orphans.pop(image.digest, None)

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


def _matches(actor: ActorRecord, query: ActorQuery) -> bool:
    if query.label is not None:
        key, value = query.label
        if key not in actor.labels or (value is not None and actor.labels[key] != value):
            return False
    return (
        (query.model is None or actor.model == query.model)
        and (query.q is None or query.q.lower() in actor.name.lower())
        and (query.ids is None or actor.id in query.ids)
        and (query.exclude is None or actor.id not in query.exclude)
        and (query.after is None or actor.id > query.after)
    )
