"""The few rows of host memory that states pass on their way to the disk and back.

They bound what moves take, however many actors wake or leave at once, and their pages stay: a move
allocates nothing. Whoever finds none free waits; nobody who holds one waits for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from statevisor.hypervisor.engine import Engine

#: As many moves as two cores and one disk can do at once, and one to be filled meanwhile.
ROWS: Final = 4


class Staging:
    """Rows of one guest, lent for the length of a block."""

    def __init__(self, memory: memoryview, row_bytes: int, engine: Engine) -> None:
        """`memory` is cut into rows; `engine` is the one whose calls may use them."""
        memory = memory.cast("B")
        self._free = [
            memory[at : at + row_bytes] for at in range(0, len(memory) - row_bytes + 1, row_bytes)
        ]
        self.capacity = len(self._free)
        self._engine = engine
        self._room = asyncio.Semaphore(self.capacity)

    @property
    def free(self) -> int:
        """How many rows can be lent now."""
        return len(self._free)

    @asynccontextmanager
    async def row(self) -> AsyncIterator[memoryview]:
        """One row, its bytes undefined at first."""
        await self._room.acquire()
        row = self._free.pop()
        try:
            yield row
        except BaseException:
            # it may still be copied for a caller that was cancelled
            last = asyncio.ensure_future(self._engine.settled())
            last.add_done_callback(lambda _: self._give(row))
            raise
        self._give(row)

    def _give(self, row: memoryview) -> None:
        self._free.append(row)
        self._room.release()
