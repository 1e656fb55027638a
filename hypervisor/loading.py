"""A slot that is filled part by part, while the rest of its row is still on its way."""

from __future__ import annotations

import asyncio
from functools import partial

from statevisor.hypervisor.engine import Engine
from statevisor.hypervisor.ports import Guest


class Loading:
    """Loads what has come of a row; whether it is right is known later, and then it counts.

    What is handed to the engine comes ahead of whatever is handed to it behind, so a row that is
    found damaged is overwritten, or cleared, by whoever has the slot next.
    """

    def __init__(self, engine: Engine, guest: Guest, slot: int, row: memoryview) -> None:
        """On the event loop; `row` is filled from its beginning."""
        self._engine = engine
        self._guest = guest
        self._slot = slot
        self._row = row
        self._there = 0  #: bytes handed to the engine
        self._given = self._told = 0  #: calls
        self._failure: BaseException | None = None
        self._news: asyncio.Future[None] | None = None
        engine.begin()

    def reach(self, nbytes: int) -> None:
        """So many bytes are there, none of them checked; 0: what was there is so no more.

        On any one thread at a time, and on none once the row is whole.
        """
        start, self._there = self._there, nbytes
        if nbytes > start:
            self._given += 1
            load = partial(self._guest.load, self._slot, self._row[start:nbytes], start)
            self._engine.part(load, self._tell)

    async def whole(self) -> None:
        """The row is whole and right: return when the slot holds it. Raises what a load does."""
        self.reach(len(self._row))
        while self._told < self._given:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        if self._failure is not None:
            raise self._failure

    def _tell(self, _: None, failure: BaseException | None) -> None:
        self._told += 1
        self._failure = self._failure or failure
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
