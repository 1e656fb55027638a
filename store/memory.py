"""The catalog's twin: the same promises as `store/catalog.py`, in dicts, lost with the process.

An effect takes place at once and whole; then the event loop gets a turn before the caller goes on,
as it does while the real catalog commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from statevisor.hypervisor.catalog_port import (
    Guard,
    JournalEntry,
    NewActor,
    Once,
    Origin,
    Provenance,
)
from statevisor.hypervisor.errors import (
    ActorExists,
    ActorQuarantined,
    Conflict,
    StatevisorError,
)
from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.records import (
    ActorRecord,
    ImageRef,
    TurnRecord,
    VersionRecord,
)
from statevisor.hypervisor.vocab import FinishReason, Op
from statevisor.store.guards import (
    check_guard,
    check_incarnation,
    check_key,
    check_own,
    check_start,
    result_of,
)
from statevisor.store.memory_keeping import MemoryKeeping


class MemoryCatalog(MemoryKeeping):
    """A `Catalog` without a file; two values of it share nothing."""

    async def close(self) -> None:
        """Nothing to close; the rows stay, as a file would."""

    def use_builds(self, builds: Mapping[str, str]) -> None:
        """Take the build of each model for the versions made from now on."""
        self._builds = dict(builds)

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
    ) -> ActorRecord:
        turn = self._open(turn_id)
        actor = self._live(turn.actor_id)
        check_guard(actor.record, guard)
        if not actor.record.position <= position <= turn.position:
            raise StatevisorError(
                f"turn {turn_id} cannot end at {position}: "
                f"it covers {actor.record.position}..{turn.position}"
            )
        beyond = self._history.beyond(turn.segment, position)
        if position < turn.position and beyond is not None:
            raise StatevisorError(
                f"turn {turn_id} cannot end at {position}: something was made of it at {beyond}"
            )
        self._history.cut(turn.segment, position)
        self._turns[turn_id] = replace(
            turn, position=position, finish=finish, text=text, broken=broken
        )
        actor.turn = None
        self._change(actor, position=position)
        self._step(actor, Op.TURN)
        if result is not None:
            self._settle(turn_id, result)
        await asyncio.sleep(0)
        return self._shown(actor)

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
        actor = self._guarded(actor_id, guard)
        home = self._history.home(segment, position)
        self._check_origin(Origin(segment=segment, position=position, handle=None), home)
        check_own(actor.record, home, position)
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

    async def keep_image(self, segment: int, position: int, image: ImageRef) -> ImageRef:
        place = self._history.place(segment, position)
        kept = self._keep(place, position, image, anew=False)
        await asyncio.sleep(0)
        return kept

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
