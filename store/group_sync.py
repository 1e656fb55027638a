"""One sync for all who finished writing before it began."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from statevisor.store.settled import settled


class GroupSync:
    """Shares the sync of one file among writers, without a timer.

    The first writer starts a sync at once. Writers that come while it runs share the next, which
    starts when the first has returned. A sync covers only writes that ended before it began, so
    nobody joins one that runs already.
    """

    def __init__(self, sync: Callable[[], Awaitable[None]]) -> None:
        self._sync = sync
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Return when everything written before this call is durable. Raises what the sync does."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._turn(self._running))
        await settled(self._next)

    async def _turn(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None and not previous.done():
            await asyncio.wait([previous])
        # No await between this line and the sync: a later writer must not find this turn as next.
        self._running, self._next = self._next, None
        await self._sync()
