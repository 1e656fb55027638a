"""The catalog in SQL: one method is one transaction, on the writer's thread or a reader's.

What a method promises stands in `hypervisor/catalog_port.py`; how it is done, in the modules
named by its noun. Nothing is cached but the tokens of open turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection

from statevisor.hypervisor.catalog_port import (
    ActorQuery,
    Checkpoint,
    Finding,
    Guard,
    JournalEntry,
    NewActor,
    Once,
    Origin,
    Provenance,
    Rubbish,
    Standing,
    VersionQuery,
    Walk,
)
from statevisor.hypervisor.errors import StatevisorError, Unavailable
from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.records import (
    ActorRecord,
    ImageRef,
    OperationRecord,
    SegmentRecord,
    TokenRun,
    TurnRecord,
    VersionRecord,
)
from statevisor.hypervisor.vocab import FinishReason, Op
from statevisor.store import (
    actors,
    ancestry,
    births,
    branches,
    checkpoints,
    journal,
    keeping,
    lineage,
    making,
    operations,
    owners,
    rosters,
    rowcheck,
    search,
    segments,
    sweep,
    transcripts,
    turns,
    versions,
    walks,
)
from statevisor.store.db import READERS, Anchor, FolderLock, migrate, open_engine
from statevisor.store.extents import Extents
from statevisor.store.guards import check_incarnation
from statevisor.store.readers import Readers
from statevisor.store.scope import Scope
from statevisor.store.tails import Tails
from statevisor.store.writer import Writer


def wall_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


class SqlCatalog:
    """A `Catalog` in one data folder."""

    def __init__(
        self,
        path: Path,
        lock: FolderLock | None,
        *,
        now_us: Callable[[], int],
        keep_keys_us: int,
        on_broken: Callable[[str], object],
        aged_us: Callable[[], int],
    ) -> None:
        self._aged_us = aged_us
        self._lock = lock
        self._anchor = Anchor(path)
        self._on_broken = on_broken
        self._claimed = False
        self._now_us = now_us
        self._keep_keys_us = keep_keys_us
        self._incarnation = 0
        self._closed = False
        self._builds: Mapping[str, str] = {}
        self._tails = Tails()
        self._engines = (
            open_engine(path, connections=1),
            open_engine(path, connections=READERS, read_only=True),
        )
        self._writer: Writer[Scope] = Writer(
            self._engines[0], self._scope, self._tails, self._tell_broken
        )
        self._readers = Readers(self._engines[1])

    @classmethod
    async def open(
        cls,
        folder: Path,
        *,
        locked: bool = True,
        now_us: Callable[[], int] = wall_us,
        keep_keys_us: int = 24 * 3600 * 10**6,
        on_broken: Callable[[str], object] = lambda reason: None,
        aged_us: Callable[[], int] | None = None,
    ) -> Self:
        """Open the catalog of a data folder, made and migrated as needed.

        `locked` keeps other servers out until `close`. `on_broken` hears, on another thread and
        before any caller does, that nothing more can be written. By `aged_us` keys grow old, if
        not by `now_us`.
        Raises: Unavailable (the folder is in use, the disk fails), StatevisorError (a journal row
        that an open turn needs is damaged).
        """
        lock = FolderLock(folder) if locked else None
        try:
            path = await asyncio.to_thread(_prepare, folder, lock)
            made = cls(
                path,
                lock,
                now_us=now_us,
                keep_keys_us=keep_keys_us,
                on_broken=on_broken,
                aged_us=aged_us or now_us,
            )
            await made._start()
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        return made

    async def _start(self) -> None:
        try:
            self._incarnation = await self._readers.run(owners.current)
            await self._writer.start()
            await self._writer.submit(lambda scope: journal.load(scope.conn, scope.tails))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Finish what was asked for, then let the files and the folder go; once is enough."""
        if self._closed:
            return
        self._closed = True
        await self._writer.close()
        await self._readers.close()
        for engine in self._engines:
            engine.dispose()
        if self._lock is not None:
            self._lock.release()

    @property
    def stopped(self) -> StatevisorError | None:
        """Why nothing more is written, once the database has failed; reading may go on."""
        return self._writer.stopped

    def use_builds(self, builds: Mapping[str, str]) -> None:
        """Take the build of each model for the versions made from now on."""
        self._builds = dict(builds)

    def _tell_broken(self, reason: str) -> None:
        if self._claimed:  # before, whoever opens it is told, and nothing was promised yet
            self._on_broken(reason)

    def _scope(self, conn: Connection) -> Scope:
        """What a group's operations share.

        Raises: Fenced (the folder has another owner), Unavailable (its files are not there).
        """
        try:
            self._anchor.check()
        except Unavailable as error:
            self._tell_broken(error.detail)
            raise
        check_incarnation(owners.current(conn), self._incarnation)
        return Scope(
            conn=conn,
            now_us=self._now_us(),
            incarnation=self._incarnation,
            builds=self._builds,
            keep_keys_us=self._keep_keys_us + self._now_us() - self._aged_us(),
            tails=self._tails,
        )

    # -- reading ---------------------------------------------------------------------------------
    async def actor(self, key: str) -> ActorRecord:
        ends = self._tails.ends()
        return (await self._readers.run(actors.get, key)).shown(ends)

    async def actors(self, query: ActorQuery) -> tuple[tuple[ActorRecord, ...], bool]:
        ends = self._tails.ends()
        found, more = await self._readers.run(rosters.page, query)
        return tuple(one.shown(ends) for one in found), more

    async def recent(self, limit: int) -> tuple[ActorRecord, ...]:
        ends = self._tails.ends()
        found = await self._readers.run(rosters.recent, limit)
        return tuple(one.shown(ends) for one in found)

    async def count_actors(self) -> int:
        return await self._readers.run(actors.count)

    async def segment(self, segment: int) -> SegmentRecord:
        return (await self._readers.run(segments.get, segment)).record

    async def path(self, segment: int, limit: int) -> tuple[SegmentRecord, ...]:
        return await self._readers.run(segments.up, segment, limit)

    async def transcript(self, segment: int, start: int, stop: int) -> tuple[TokenRun, ...]:
        tail = self._tails.seen(segment)
        return await self._readers.run(transcripts.read, segment, start, stop, tail)

    async def version(self, handle: str) -> VersionRecord:
        def read(conn: Connection) -> VersionRecord:
            return versions.one(conn, versions.resolve(conn, handle))

        return await self._readers.run(read)

    async def version_at(self, segment: int, position: int) -> VersionRecord | None:
        def read(conn: Connection) -> VersionRecord | None:
            home = segments.find_home(conn, segment, position)
            return None if home is None else _shown(conn, versions.at(conn, home, position))

        return await self._readers.run(read)

    async def versions(
        self, actor_id: str, after: int | None, limit: int
    ) -> tuple[tuple[VersionRecord, ...], bool]:
        def read(conn: Connection) -> tuple[tuple[VersionRecord, ...], bool]:
            actors.get(conn, actor_id)
            return versions.page(conn, actor_id, after, limit)

        return await self._readers.run(read)

    async def search(self, query: VersionQuery) -> tuple[tuple[VersionRecord, ...], bool]:
        return await self._readers.run(search.page, query)

    async def as_of(self, actor_id: str, at_us: int) -> VersionRecord | None:
        def read(conn: Connection) -> VersionRecord | None:
            actors.get(conn, actor_id)
            return _shown(conn, versions.as_of(conn, actor_id, at_us))

        return await self._readers.run(read)

    async def walk(self, start: str | Sequence[int], direction: str, limit: int) -> Walk:
        return await self._readers.run(walks.walk, start, direction, limit)

    async def lineage(
        self, handle: str, direction: str, depth: int, limit: int
    ) -> tuple[tuple[VersionRecord, ...], tuple[tuple[str, str, Op], ...], bool]:
        return await self._readers.run(lineage.graph, handle, direction, depth, limit)

    async def common_ancestor(self, a: str, b: str) -> VersionRecord | None:
        return await self._readers.run(lambda conn: _shown(conn, ancestry.common(conn, a, b)))

    async def is_ancestor(self, a: str, b: str) -> bool:
        return await self._readers.run(ancestry.is_ancestor, a, b)

    async def blame(self, handle: str, layer: int) -> VersionRecord | None:
        return await self._readers.run(
            lambda conn: _shown(conn, lineage.blame(conn, handle, layer))
        )

    async def nearest_image(self, segment: int, position: int) -> tuple[int, ImageRef] | None:
        return await self._readers.run(checkpoints.nearest, segment, position)

    async def image(self, digest: str) -> ImageRef | None:
        return await self._readers.run(checkpoints.get, digest)

    async def image_at(self, segment: int, position: int) -> ImageRef | None:
        return await self._readers.run(checkpoints.at, segment, position)

    async def standing(self, segment: int, position: int, absorbed: int) -> Standing:
        tail = self._tails.seen(segment)

        def read(conn: Connection) -> Standing:
            image = checkpoints.at(conn, segment, position)
            if image is not None or absorbed >= position:
                return Standing(image, ())
            runs = transcripts.read(conn, segment, absorbed, position, tail)
            return Standing(None, tuple(token for run in runs for token in run.tokens))

        return await self._readers.run(read)

    async def live_images(self) -> tuple[ImageRef, ...]:
        return await self._readers.run(checkpoints.live)

    async def live_extents(self) -> Extents:
        """Where every live image lies, for the free map at start: a small part of their rows."""
        return await self._readers.run(checkpoints.extents)

    async def checkpoints(self, after: int, limit: int) -> tuple[Checkpoint, ...]:
        return await self._readers.run(keeping.page, after, limit)

    async def anchors(self) -> Mapping[tuple[int, int], str]:
        return await self._readers.run(keeping.anchors)

    async def rubbish(self, *, grace_us: int) -> Rubbish:
        return await self._readers.run(keeping.rubbish, self._now_us() - grace_us)

    async def check(self) -> tuple[Finding, ...]:
        return await self._readers.run(rowcheck.check)

    async def turn(self, turn_id: str) -> TurnRecord:
        ends = self._tails.ends()
        return turns.shown(await self._readers.run(turns.get, turn_id), ends)

    async def operation(self, key: str) -> OperationRecord | None:
        oldest = self._aged_us() - self._keep_keys_us
        return await self._readers.run(operations.get, key, oldest)

    async def open_turns(self) -> tuple[TurnRecord, ...]:
        ends = self._tails.ends()
        return tuple(turns.shown(one, ends) for one in await self._readers.run(turns.open_turns))

    # -- changing --------------------------------------------------------------------------------
    async def create(
        self, new: NewActor, prompt: Sequence[int], *, once: Once | None = None
    ) -> ActorRecord:
        return await self._writer.submit(lambda scope: births.create(scope, new, prompt, once))

    async def fork(
        self,
        children: Sequence[NewActor],
        origin: Origin,
        *,
        prompt: Sequence[int] = (),
        once: Once | None = None,
    ) -> tuple[ActorRecord, ...]:
        return await self._writer.submit(
            lambda scope: births.fork(scope, children, origin, prompt, once)
        )

    async def import_image(
        self,
        new: NewActor,
        image: ImageRef,
        meta: ImageMeta,
        *,
        agent: str | None = None,
        once: Once | None = None,
    ) -> tuple[ActorRecord, VersionRecord]:
        return await self._writer.submit(
            lambda scope: births.import_image(scope, new, image, meta, agent, once)
        )

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
        given = {
            "name": name,
            "labels": None if labels is None else dict(labels),
            "pinned": pinned,
            "ttl_s": ttl_s,
            "seed": seed,
            "drift": drift,
        }
        columns: dict[str, Any] = {key: one for key, one in given.items() if one is not None}
        if ttl_s == 0:
            columns["ttl_s"] = None
        return await self._change(actor_id, guard, columns)

    async def quarantine(self, actor_id: str, reason: str | None, *, guard: Guard) -> ActorRecord:
        return await self._change(actor_id, guard, {"quarantine": reason})

    async def delete(self, actor_id: str, *, guard: Guard) -> None:
        def bury(scope: Scope) -> None:
            operations.check(scope, guard.once)
            actor = actors.guarded(scope, actor_id, guard, idle=True)
            making.drop_tags(scope.conn, actor_id)
            actors.bury(scope, actor)
            operations.keep(scope, guard.once)

        await self._writer.submit(bury)

    async def begin_turn(
        self, turn: TurnRecord, prompt: Sequence[int], *, guard: Guard
    ) -> ActorRecord:
        return await self._writer.submit(lambda scope: turns.begin(scope, turn, prompt, guard))

    async def journal(self, entries: Sequence[JournalEntry], *, incarnation: int) -> None:
        await self._writer.submit(lambda scope: journal.append(scope, entries, incarnation))

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
        return await self._writer.submit(
            lambda scope: turns.end(
                scope,
                turn_id,
                finish=finish,
                position=position,
                text=text,
                result=result,
                guard=guard,
                broken=broken,
            )
        )

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
        origin = Origin(segment=segment, position=position, handle=None)
        return await self._writer.submit(
            lambda scope: branches.snapshot(scope, actor_id, origin, tag, labels, guard)
        )

    async def mutate(
        self, actor_id: str, image: ImageRef, why: Provenance, *, guard: Guard
    ) -> tuple[ActorRecord, VersionRecord]:
        return await self._writer.submit(
            lambda scope: branches.mutate(scope, actor_id, image, why, guard)
        )

    async def rollback(
        self, actor_id: str, origin: Origin, *, seed: int | None, guard: Guard
    ) -> tuple[ActorRecord, VersionRecord]:
        return await self._writer.submit(
            lambda scope: branches.rollback(scope, actor_id, origin, seed, guard)
        )

    async def add_image(self, segment: int, position: int, image: ImageRef) -> None:
        def keep(scope: Scope) -> None:
            place = segments.home(scope.conn, segment, position).place_of(position)
            checkpoints.keep(scope, place, position, image)

        await self._writer.submit(keep)

    async def keep_image(self, segment: int, position: int, image: ImageRef) -> ImageRef:
        def keep(scope: Scope) -> ImageRef:
            place = segments.home(scope.conn, segment, position).place_of(position)
            return checkpoints.keep(scope, place, position, image, anew=False)

        return await self._writer.submit(keep)

    async def remember(self, once: Once, result: Mapping[str, Any]) -> None:
        await self._writer.submit(lambda scope: operations.remember(scope, once, result))

    async def forget(self, places: Sequence[tuple[int, int]]) -> None:
        await self._writer.submit(lambda scope: keeping.forget(scope, places))

    async def sweep(self, *, grace_us: int) -> tuple[ImageRef, ...]:
        """As the port says; one call takes out a bounded number of actors."""
        return await self._writer.submit(lambda scope: sweep.sweep(scope, grace_us))

    async def claim(self, owner: str) -> int:
        """As the port says; the epoch of every living actor grows, its generation does not."""

        def take(scope: Scope) -> int:
            scope.tails.on_undo(partial(setattr, self, "_incarnation", self._incarnation))
            self._incarnation = owners.claim(scope, owner)
            return self._incarnation

        incarnation = await self._writer.submit(take)
        self._claimed = True
        return incarnation

    async def _change(self, actor_id: str, guard: Guard, columns: dict[str, Any]) -> ActorRecord:
        def change(scope: Scope) -> ActorRecord:
            operations.check(scope, guard.once)
            actor = actors.guarded(scope, actor_id, guard)
            actor = actors.change(scope, actor, **columns)
            if "name" in columns:  # its parent may have had that name, deleted
                actor = actors.get(scope.conn, actor_id)
            made = actor.shown(scope.tails.all_ends())
            operations.keep(scope, guard.once, actor=made)
            return made

        return await self._writer.submit(change)


def _prepare(folder: Path, lock: FolderLock | None) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if lock is not None:
            lock.acquire()
        return migrate(folder)
    except OSError as error:
        raise Unavailable(
            f"cannot use {folder} as a data folder: {error.strerror}",
            hint="Name a --data folder that can be written.",
        ) from error


def _shown(conn: Connection, number: int | None) -> VersionRecord | None:
    return None if number is None else versions.one(conn, number)
