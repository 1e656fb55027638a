"""What the caller of a turn holds: its tokens as they are committed, then its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from statevisor.hypervisor.commands import TokenEvent, TurnView


class TurnStream:
    """The committed tokens of one turn, in order; it may be read slower than they come.

    A caller that reads too slowly delays nobody: the events wait here, and their number is bounded
    by the turn's `max_tokens`.
    """

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        self._events: asyncio.Queue[Sequence[TokenEvent] | None] = asyncio.Queue()
        self._result: asyncio.Future[TurnView] = asyncio.get_running_loop().create_future()
        self._listener: Callable[[Sequence[TokenEvent]], object] | None = None
        self._on_cancel: Callable[[], object] = _nothing
        self._cancelled = False

    # -- for the caller --------------------------------------------------------------------------
    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        while (events := await self._events.get()) is not None:
            for event in events:
                yield event

    async def batches(self, most: int = 64) -> AsyncIterator[list[TokenEvent]]:
        """As iteration, but tokens that wait already come together, about `most` of them.

        A caller that lags behind so catches up in fewer, larger steps.
        """
        waiting = self._events
        while (events := await waiting.get()) is not None:
            batch = list(events)
            while len(batch) < most and not waiting.empty():
                following = waiting.get_nowait()
                if following is None:
                    yield batch
                    return
                batch += following
            yield batch

    def listen(self, listener: Callable[[Sequence[TokenEvent]], object]) -> None:
        """Call this with tokens as they are released, instead of iteration; it must not block.

        Those that wait already are told first.
        """
        self._listener = listener
        while not self._events.empty():
            events = self._events.get_nowait()
            if events is None:
                self._events.put_nowait(None)
                return
            listener(events)

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

    def put(self, events: Sequence[TokenEvent]) -> None:
        """Release committed tokens."""
        if not events:
            return
        if self._listener is not None:
            self._listener(events)
        else:
            self._events.put_nowait(events)

    def end(self, result: TurnView) -> None:
        """Release the result; nothing follows."""
        self._finish()
        self._result.set_result(result)

    def fail(self, error: BaseException) -> None:
        """End without a result."""
        self._finish()
        self._result.set_exception(error)
        self._result.exception()  # it is reported to whoever asks; nobody has to

    def _finish(self) -> None:
        self._events.put_nowait(None)
        # it holds the turn, which holds this: such a circle waits for the garbage collector
        self._on_cancel = _nothing


def _nothing() -> None:
    return
