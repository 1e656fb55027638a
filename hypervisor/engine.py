"""The two threads that own the device: one for its steps, one for copies from and to the host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Engine:
    """Runs a guest's calls one after the other on its own thread, and its copies beside them.

    A call that was handed over runs to its end even if the caller is cancelled: the device never
    sees half an operation, and the next call waits for it.
    """

    def __init__(self, name: str) -> None:
        self._steps = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"engine-{name}")
        self._copies = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"copies-{name}")

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run one call on the engine thread."""
        return await asyncio.wrap_future(self._steps.submit(call, *args, **kwargs))

    async def beside(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a copy of a slot that no step on its way has to do with; steps go on meanwhile."""
        return await asyncio.wrap_future(self._copies.submit(call, *args, **kwargs))

    def close(self) -> None:
        """Wait for the running calls and end the threads."""
        self._steps.shutdown(wait=True)
        self._copies.shutdown(wait=True)
