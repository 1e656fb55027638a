"""What the caller of a turn holds: its tokens as they are committed, then its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from statevisor.hypervisor.commands import TokenEvent, TurnView


class TurnStream:
    """The committed tokens of one turn, in order; it may be read slower than they come.

    A caller that reads too slowly delays nobody: the events wait here, and their number is bounded
    by the turn's `max_tokens`.
    """

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        self._events: asyncio.Queue[TokenEvent | None] = asyncio.Queue()
        self._result: asyncio.Future[TurnView] = asyncio.get_running_loop().create_future()
        self._on_cancel: Callable[[], object] = lambda: None
        self._cancelled = False

    # -- for the caller --------------------------------------------------------------------------
    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    async def batches(self, most: int = 64) -> AsyncIterator[list[TokenEvent]]:
        """As iteration, but tokens that wait already come together, at most `most` of them.

        A caller that lags behind so catches up in fewer, larger steps.
        """
        events = self._events
        while (event := await events.get()) is not None:
            batch = [event]
            while len(batch) < most and not events.empty():
                following = events.get_nowait()
                if following is None:
                    yield batch
                    return
                batch.append(following)
            yield batch

    async def result(self) -> TurnView:
        """The finished turn. Raises: the error that ended it before it could be recorded."""
        return await asyncio.shield(self._result)

    def cancel(self) -> None:
        """End the turn at the last step that was launched; it then finishes as `cancelled`."""
        self._cancelled = True
        self._on_cancel()

    # -- for the hypervisor ----------------------------------------------------------------------
    def on_cancel(self, call: Callable[[], object]) -> None:
        """What a cancel does from now on; called at once if it was cancelled already."""
        self._on_cancel = call
        if self._cancelled:
            call()

    @property
    def cancelled(self) -> bool:
        """Whether the caller has asked for an end."""
        return self._cancelled

    def put(self, event: TokenEvent) -> None:
        """Release one committed token."""
        self._events.put_nowait(event)

    def end(self, result: TurnView) -> None:
        """Release the result; nothing follows."""
        self._events.put_nowait(None)
        self._result.set_result(result)

    def fail(self, error: BaseException) -> None:
        """End without a result."""
        self._events.put_nowait(None)
        self._result.set_exception(error)
        self._result.exception()  # it is reported to whoever asks; nobody has to
