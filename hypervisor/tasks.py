"""Work that has begun and must end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from statevisor.hypervisor.errors import StatevisorError
from statevisor.hypervisor.turnstile import Turnstile

T = TypeVar("T")


class Tasks:
    """Keeps every operation alive until it has ended, whoever asked for it."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._turnstile = Turnstile()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin work, in the order of the calls; where many begin at once, a few at a time."""
        task = asyncio.create_task(self._begin(work))
        self._running.add(task)
        task.add_done_callback(partial(self._ended, work))
        return task

    async def few(self) -> None:
        """Go on at once, or where many come here at once, a few at a time."""
        await self._turnstile.through()

    async def _begin(self, work: Coroutine[Any, Any, T]) -> T:
        await self._turnstile.through()
        return await work

    def _ended(self, work: Coroutine[Any, Any, Any], task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        work.close()  # it was cancelled before it began: Python tells of a coroutine left lying

    async def whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work to its end, also when the caller is cancelled."""
        task = self.spawn(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_unheard)
            raise

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until nothing runs, or for so many seconds."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=seconds)

    async def cancel(self) -> None:
        """Cancel what runs and wait for it."""
        for task in set(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


def _unheard(task: asyncio.Task[Any]) -> None:
    """Whoever wanted the result has gone: a refusal concerns nobody, a fault goes to the log."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, StatevisorError):
        told = {"message": "an operation failed whose caller had gone", "exception": error}
        task.get_loop().call_exception_handler({**told, "task": task})
