"""Lets a few at a time through, so that no turn of the event loop is long.

Where hundreds begin or end at once, the steps of all actors, and whoever asks a short question,
would wait until the event loop has been through all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

#: In one turn of the event loop; each then does a tenth of a millisecond of work or so. Of 4 every
#: turn of an actor takes a twentieth more of the processor.
FEW: Final = 8


class Turnstile:
    """Whoever comes passes in the order of coming, at most so many in a turn of the event loop."""

    def __init__(self, most: int = FEW) -> None:
        self._most = most
        self._passed = 0  #: in this turn of the event loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def through(self) -> None:
        """Return at once, or in a later turn of the event loop where many come."""
        if self._passed < self._most and not self._waiting:
            self._pass()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _pass(self) -> None:
        if not self._passed:
            asyncio.get_running_loop().call_soon(self._next)
        self._passed += 1

    def _next(self) -> None:
        """The next turn of the event loop."""
        self._passed = 0
        while self._waiting and self._passed < self._most:
            turn = self._waiting.popleft()
            if not turn.done():  # else it was cancelled
                turn.set_result(None)
                self._pass()
