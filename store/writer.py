"""The one thread that writes: whatever has gathered becomes one transaction.

The next group commits when the last commit returns; there is no timer. Every operation of a group
runs under a savepoint, so one that fails leaves nothing and disturbs no other; one that is alone
needs none. A caller hears of its operation only after the commit (the output gate).

A full disk, and a write lock that someone else holds for too long, fail the group and no more. If
the database fails otherwise (an I/O error, damage) the writer stops for good, and the process with
it where `on_broken` says so: what the disk holds is then decided by the next start, which reads
nothing but committed groups.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from statevisor.hypervisor.errors import StatevisorError, Unavailable
from statevisor.hypervisor.hands import Hands
from statevisor.store.db import as_ours, begin, finish, is_full, is_locked, is_outage
from statevisor.store.prepared import execute

_log = logging.getLogger(__name__)

#: Operations that one group takes, so that none waits long for those before it; the rest is the
#: next group's.
GROUP = 64

ScopeT = TypeVar("ScopeT")
T = TypeVar("T")


class Memory(Protocol):
    """What changes in memory along with the database."""

    def mark(self) -> int:
        """A point to come back to."""
        ...

    def undo(self, mark: int) -> None:
        """Take back every change since a mark."""
        ...

    def publish(self) -> None:
        """Show the changes to readers; called on the event loop, after the commit."""
        ...


@dataclass(slots=True)
class _Job:
    op: Callable[[Any], Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None


class Writer(Generic[ScopeT]):
    """Runs operations in groups on the writing connection's own thread.

    `scope` makes what the operations of one group are called with; if it raises, the whole group
    fails with its error. `on_broken` is called on the writer's thread, before anyone is told.
    """

    def __init__(
        self,
        engine: Engine,
        scope: Callable[[Connection], ScopeT],
        memory: Memory,
        on_broken: Callable[[str], object] = lambda reason: None,
    ) -> None:
        self._on_broken = on_broken
        self._engine = engine
        self._scope = scope
        self._memory = memory
        self._jobs: deque[_Job] = deque()
        self._group: list[_Job] = []  # what is being committed
        self._hands = Hands(1, "catalog-writer")
        self._conn: Connection | None = None
        self._busy = False  # a group is under way, or about to be
        self._rest: asyncio.Future[None] | None = None  # what `close` waits for
        self._ended: BaseException | None = None  # a fault of the writer itself
        self._closing = False
        self.stopped: StatevisorError | None = None  #: why it takes no more work
        self.groups = 0  #: groups committed so far

    async def start(self) -> None:
        """Connect and begin to take work."""
        self._conn = await self._hands.run(self._engine.connect)

    async def close(self) -> None:
        """Finish what has gathered, then let the connection go. Raises: what ended the writer."""
        self._closing = True
        try:
            if self._busy:
                self._rest = asyncio.get_running_loop().create_future()
                await self._rest
            if self._ended is not None:
                raise self._ended
        finally:
            if self._conn is not None:
                await self._hands.run(self._conn.close)
            await self._hands.close()

    async def submit(self, op: Callable[[ScopeT], T]) -> T:
        """Run an operation in the next group and return its result once that is committed.

        Raises: what the operation raised; Unavailable (the group could not be committed).
        """
        if self.stopped is not None:
            raise self.stopped.with_traceback(None)
        if self._closing:
            raise Unavailable("the catalog is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.append(_Job(op, future))
        if not self._busy:
            self._busy = True
            # not at once: what the loop has ready to be submitted shares the group
            loop.call_soon(self._next)
        return await future

    def _next(self) -> None:
        """Hand the next group to the thread, or rest."""
        while self._jobs:
            taken = [self._jobs.popleft() for _ in range(min(GROUP, len(self._jobs)))]
            self._group = [job for job in taken if not job.future.cancelled()]
            if self._group:
                self._hands.give(partial(self._commit, self._group), self._told)
                return
        self._busy = False
        if self._rest is not None:
            self._rest.set_result(None)

    def _told(self, failure: Exception | None, error: BaseException | None) -> None:
        """A group was committed, or failed, or (a fault of ours) the thread did."""
        try:
            if error is not None:
                raise error
            if failure is not None:
                self._fail(failure)
            else:
                self._memory.publish()
                for job in self._group:
                    _resolve(job)
        except BaseException as fault:
            # Nobody may wait for an answer that will not come.
            self._ended = fault
            self.stopped = StatevisorError(f"the catalog's writer ended: {fault!r}")
            self._fail(self.stopped)
        self._next()

    def _commit(self, group: list[_Job]) -> Exception | None:
        """One transaction, on the writer's thread; returns why the whole group failed."""
        assert self._conn is not None
        try:
            begin(self._conn, write=True)
        except DBAPIError as error:
            return self._failure(error)
        try:
            scope = self._scope(self._conn)
            alone = len(group) == 1
            for job in group:
                self._attempt(self._conn, scope, job, alone=alone)
            finish(self._conn, commit=not alone or group[0].error is None)
        except DBAPIError as error:
            self._abandon(self._conn)
            return self._failure(error)
        except Exception as error:
            self._abandon(self._conn)
            return error
        self.groups += 1
        return None

    def _failure(self, error: DBAPIError) -> StatevisorError:
        """Why a group is not committed; stops the writer if nothing more can be."""
        failure = as_ours(error)
        if not is_full(error) and not is_locked(error):
            self.stopped = failure
            _log.critical("the catalog takes no more writes: %s", error.orig)
            self._on_broken(failure.detail)
        return failure

    def _attempt(self, conn: Connection, scope: ScopeT, job: _Job, *, alone: bool) -> None:
        """One operation, under a savepoint unless it is alone; lets only outages through."""
        mark = self._memory.mark()
        if not alone:
            execute(conn, "SAVEPOINT op")
        try:
            job.result = job.op(scope)
        except Exception as error:
            if isinstance(error, DBAPIError):
                if is_outage(error):
                    raise
                job.error = as_ours(error)
                job.error.__cause__ = error
            else:
                job.error = error
            if not alone:
                execute(conn, "ROLLBACK TO SAVEPOINT op")
            self._memory.undo(mark)
        if not alone:
            execute(conn, "RELEASE SAVEPOINT op")

    def _abandon(self, conn: Connection) -> None:
        # It fails where SQLite has rolled back already, or cannot; the group is not committed.
        with suppress(DBAPIError):
            finish(conn, commit=False)
        self._memory.undo(0)

    def _fail(self, failure: Exception) -> None:
        """Tell the group why it failed; if the writer has stopped, all who wait as well."""
        if self.stopped is not None:
            self._group += self._jobs
            self._jobs.clear()
        for job in self._group:
            job.error = failure
            _resolve(job)


def _resolve(job: _Job) -> None:
    if job.future.done():  # the caller was cancelled
        return
    if job.error is not None:
        job.future.set_exception(job.error)
    else:
        job.future.set_result(job.result)
