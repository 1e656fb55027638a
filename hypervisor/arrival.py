"""A state on its way into a slot: handed to the engine, but neither there nor checked yet.

What is handed to the engine behind it comes behind it. So steps may be given before it has come,
as long as nothing that they make is told, written or copied before it is known to be sound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from statevisor.hypervisor.errors import ImageCorrupt


class Arrival:
    """A copy into a slot, and the check of what is copied, side by side."""

    def __init__(
        self,
        copy: Coroutine[Any, Any, object],
        check: Coroutine[Any, Any, object],
        *,
        began: float,
    ) -> None:
        self.began = began  #: of the monotonic clock
        self._both = asyncio.gather(copy, check, return_exceptions=True)

    async def begun(self) -> None:
        """Both are handed to their threads when this returns."""
        await asyncio.sleep(0)  # tasks begin in the order in which they were made, and before this

    async def sound(self) -> bool:
        """Wait for both; False if the bytes are damaged. Raises: what kept them from coming."""
        copied, checked = await self._both
        if isinstance(copied, BaseException):
            raise copied
        if isinstance(checked, ImageCorrupt):
            return False
        if isinstance(checked, BaseException):
            raise checked
        return True
