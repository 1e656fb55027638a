"""The catalog in SQL, in one data folder: opened, owned, closed.

What it can be asked stands in `store/catalog_reads.py`, what changes it in
`store/catalog_changes.py`; how that is done, in the modules named by its noun.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Self

from sqlalchemy import Connection

from statevisor.hypervisor.errors import StatevisorError, Unavailable
from statevisor.store import journal, owners
from statevisor.store.catalog_changes import CatalogChanges
from statevisor.store.catalog_reads import CatalogReads
from statevisor.store.db import READERS, Anchor, FolderLock, migrate, open_engine
from statevisor.store.guards import check_incarnation
from statevisor.store.readers import Readers
from statevisor.store.scope import Scope
from statevisor.store.tails import Tails
from statevisor.store.writer import Writer


def wall_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


class SqlCatalog(CatalogReads, CatalogChanges):
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
        self._lock = lock
        self._anchor = Anchor(path)
        self._on_broken = on_broken
        self._claimed = False
        self._incarnation = 0
        self._closed = False
        self._builds: Mapping[str, str] = {}
        self._engines = (
            open_engine(path, connections=1),
            open_engine(path, connections=READERS, read_only=True),
        )
        tails = Tails()
        readers = Readers(self._engines[1])
        CatalogReads.__init__(
            self, readers, tails, now_us=now_us, aged_us=aged_us, keep_keys_us=keep_keys_us
        )
        CatalogChanges.__init__(
            self, Writer(self._engines[0], self._scope, tails, self._tell_broken)
        )

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

    async def claim(self, owner: str) -> int:
        """As the port says; the epoch of every living actor grows, its generation does not."""

        def take(scope: Scope) -> int:
            scope.tails.on_undo(partial(setattr, self, "_incarnation", self._incarnation))
            self._incarnation = owners.claim(scope, owner)
            return self._incarnation

        incarnation = await self._writer.submit(take)
        self._claimed = True
        return incarnation


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
