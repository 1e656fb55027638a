"""Waiting for work on another thread that uses the caller's memory."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def settled(future: asyncio.Future[T]) -> T:
    """The future's result; a cancelled caller is told only once the future has ended.

    A thread cannot be interrupted: were the caller to go on at once, it could hand out memory that
    the thread still reads or writes.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return future.result()
    if not future.cancelled():
        future.exception()  # seen: the caller is gone and nobody else will ask
    raise cancelled
