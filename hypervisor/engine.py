"""The one thread that owns the device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Engine:
    """Runs a guest's calls one after the other on its own thread.

    A call that was handed over runs to its end even if the caller is cancelled: the device never
    sees half an operation, and the next call waits for it.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"engine-{name}")

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run one call on the engine thread."""
        return await asyncio.wrap_future(self._thread.submit(call, *args, **kwargs))

    def close(self) -> None:
        """Wait for the running call and end the thread."""
        self._thread.shutdown(wait=True)
