"""Server-sent events: framing, heartbeats, back-pressure, and clients that go away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import orjson
from aiohttp import ClientConnectionError, web

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # proxies that buffer would hold tokens back
}
#: Sent at once: the framework holds the headers back until the first bytes of the body.
_OPENING = b": open\n\n"
_HEARTBEAT = b": keep-alive\n\n"
_GONE = (ConnectionError, ClientConnectionError)


def frame(event: str, data: object) -> bytes:
    """One event; JSON never holds a raw line break, so one data line is enough."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), orjson.dumps(data))


def lost(request: web.Request) -> bool:
    """Whether the client has gone."""
    transport = request.transport
    return transport is None or transport.is_closing()


@asynccontextmanager
async def attended(
    request: web.Request, on_lost: Callable[[], None], beat_s: float
) -> AsyncIterator[None]:
    """Call `on_lost` once if the client goes away during the block."""

    async def watch() -> None:
        while not lost(request):  # noqa: ASYNC110 - a closed transport wakes nobody
            await asyncio.sleep(beat_s)
        on_lost()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        await _stopped(watcher)


class EventStream:
    """The response of one request as a stream of events.

    `send` waits while the client reads slowly; a client that reads nothing for `stall_s` is taken
    for gone. Once it is gone `send` does nothing, so that the sender can finish what it does.
    """

    def __init__(
        self,
        request: web.Request,
        *,
        on_lost: Callable[[], None],
        beat_s: float,
        stall_s: float,
        headers: dict[str, str],
    ) -> None:
        self._request = request
        self._response = web.StreamResponse(headers={**_HEADERS, **headers})
        self._on_lost = on_lost
        self._beat_s = beat_s
        self._stall_s = stall_s
        self._gone = False
        self._writing_since: float | None = None
        self._wrote = False  # since the last beat

    async def __aenter__(self) -> EventStream:
        try:
            await self._response.prepare(self._request)
        except _GONE:
            self._lose()
        await self.send(_OPENING)
        self._pulse = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        await _stopped(self._pulse)
        if not self._gone:
            with suppress(*_GONE):
                await self._response.write_eof()

    @property
    def response(self) -> web.StreamResponse:
        """What the handler returns."""
        return self._response

    async def send(self, event: bytes) -> None:
        """Write one event."""
        if self._gone:
            return
        self._wrote = True
        self._writing_since = asyncio.get_running_loop().time()
        try:
            await self._response.write(event)
        except _GONE:
            self._lose()
        finally:
            self._writing_since = None

    async def _beat(self) -> None:
        while not self._gone:
            await asyncio.sleep(self._beat_s)
            if lost(self._request) or self._stalled():
                self._lose()
            elif self._writing_since is None and not self._wrote:
                await self.send(_HEARTBEAT)
            self._wrote = False

    def _stalled(self) -> bool:
        since = self._writing_since
        return since is not None and asyncio.get_running_loop().time() - since > self._stall_s

    def _lose(self) -> None:
        if self._gone:
            return
        self._gone = True
        if self._request.transport is not None:
            self._request.transport.abort()  # frees a write that waits for a reader
        self._on_lost()


async def _stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
