"""Operations of one actor run one at a time, in order of arrival, and only so many may wait.

Behind the one that deletes the actor none runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from statevisor.hypervisor.errors import ActorBusy, ActorNotFound


class Mailbox:
    """A bounded first-in first-out lock."""

    #: Why nobody is let in any more. Of the class: hardly an actor in memory has one.
    _ended: str | None = None

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = False
        # made when somebody waits: an empty deque takes more memory than the rest of an actor
        self._waiting: deque[asyncio.Future[None]] | None = None

    @property
    def held(self) -> bool:
        """Whether an operation runs."""
        return self._held

    @property
    def depth(self) -> int:
        """How many operations wait."""
        return len(self._waiting or ())

    def try_enter(self) -> bool:
        """Enter if nothing runs or waits."""
        if self._held or self._ended is not None:
            return False
        self._held = True
        return True

    async def enter(self) -> None:
        """Wait for one's turn. Raises: ActorBusy (too many wait already), ActorNotFound."""
        if self.try_enter():
            return
        if self._ended is not None:
            raise ActorNotFound(self._ended)
        if self._waiting is None:
            self._waiting = deque()
        if len(self._waiting) >= self._limit:
            raise ActorBusy(f"{self._limit} operations wait for this actor already")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave()  # it was our turn already: hand it on
            else:
                self._drop(turn)
            raise

    def _drop(self, turn: asyncio.Future[None]) -> None:
        # `leave` passes over who was cancelled, and may have come by before this
        if self._waiting is not None and turn in self._waiting:
            self._waiting.remove(turn)

    def leave(self) -> None:
        """End the running operation and let the next one in."""
        assert self._held, "leave without enter"
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._held, self._waiting = False, None

    def end(self, why: str) -> None:
        """Let nobody in any more; whoever waits or comes is told that the actor is gone."""
        self._ended = why
        for turn in self._waiting or ():
            if not turn.done():
                turn.set_exception(ActorNotFound(why))
        self._waiting = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the mailbox for a block."""
        await self.enter()
        try:
            yield
        finally:
            self.leave()
