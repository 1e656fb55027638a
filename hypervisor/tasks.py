"""Work that has begun and must end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from statevisor.hypervisor.errors import StatevisorError

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
