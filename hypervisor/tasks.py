"""Work that has begun and must end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Tasks:
    """Keeps every operation alive until it has ended, whoever asked for it."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin work."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work to its end, also when the caller is cancelled."""
        return await asyncio.shield(self.spawn(work))

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until nothing runs, or for so many seconds."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=seconds)

    async def cancel(self) -> None:
        """Cancel what runs and wait for it."""
        for task in set(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
