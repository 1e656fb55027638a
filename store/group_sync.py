"""One sync for all who finished writing before it began."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from threading import Lock

from statevisor.store.settled import settled


class _Turn:
    """A sync that is to come, or runs, or has run."""

    def __init__(self, before: _Turn | None) -> None:
        self.before = before
        self.begun = False
        self.task: asyncio.Task[None] | None = None


class GroupSync:
    """Shares the sync of one file among writers, without a timer.

    The first writer starts a sync at once, on its own thread. Writers that come while it runs share
    the next, which starts when the first has returned. A sync covers only writes that ended before
    it began, so nobody joins one that runs already.
    """

    def __init__(
        self, sync: Callable[[], None], run: Callable[[Callable[[], None]], Awaitable[None]]
    ) -> None:
        """`sync` is slow; `run` has it done on another thread."""
        self._sync = sync
        self._run = run
        self._one = Lock()  # held while a sync runs
        self._last: _Turn | None = None

    def lead(self) -> bool:
        """Sync now, on this thread, unless a sync is running; whether it was done. Slow."""
        if not self._one.acquire(blocking=False):
            return False
        try:
            self._sync()
        finally:
            self._one.release()
        return True

    async def wait(self) -> None:
        """Return when everything written before this call is durable. Raises what the sync does."""
        turn = self._last
        if turn is None or turn.task is None or turn.begun or turn.task.done():
            turn = self._last = _Turn(self._last)
            turn.task = asyncio.get_running_loop().create_task(self._take(turn))
        await settled(turn.task)

    async def _take(self, turn: _Turn) -> None:
        before, turn.before = turn.before, None
        if before is not None and before.task is not None and not before.task.done():
            await asyncio.wait([before.task])
        await self._run(partial(self._alone, turn))

    def _alone(self, turn: _Turn) -> None:
        with self._one:
            turn.begun = True  # whoever comes from here on is not covered
            self._sync()
