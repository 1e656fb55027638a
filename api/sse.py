"""Server-sent events: framing, heartbeats, back-pressure.

The server runs handlers with `handler_cancellation`, so a handler whose client goes away is
cancelled wherever it waits; nothing here has to look for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

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
#: What writing to a client that has gone raises.
CLIENT_GONE = (ConnectionError, ClientConnectionError)


def frame(event: str, data: object) -> bytes:
    """One event; JSON never holds a raw line break, so one data line is enough."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), orjson.dumps(data))


class EventStream:
    """The response of one request as a stream of events.

    `send` waits while the client reads slowly. A client that reads nothing for `stall_s` is cut
    off. A silence of `beat_s` is filled with a comment, so that proxies keep the connection.
    """

    def __init__(
        self, request: web.Request, *, beat_s: float, stall_s: float, headers: Mapping[str, str]
    ) -> None:
        self._request = request
        self._response = web.StreamResponse(headers={**_HEADERS, **headers})
        self._beat_s = beat_s
        self._stall_s = stall_s
        self._writing_since: float | None = None
        self._wrote = False  # since the last beat

    async def __aenter__(self) -> EventStream:
        await self._response.prepare(self._request)
        await self.send(_OPENING)
        self._pulse = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pulse.cancel()
        await asyncio.wait({self._pulse})
        if kind is None:
            await self._response.write_eof()

    @property
    def response(self) -> web.StreamResponse:
        """What the handler returns."""
        return self._response

    async def send(self, event: bytes) -> None:
        """Write one event. Raises: CLIENT_GONE."""
        self._wrote = True
        self._writing_since = asyncio.get_running_loop().time()
        try:
            await self._response.write(event)
        finally:
            self._writing_since = None

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._beat_s)
            if self._stalled():
                assert self._request.transport is not None
                self._request.transport.abort()
                return
            if self._writing_since is None and not self._wrote:
                await self.send(_HEARTBEAT)
            self._wrote = False

    def _stalled(self) -> bool:
        since, now = self._writing_since, asyncio.get_running_loop().time()
        gone = self._request.transport is None
        return since is not None and now - since > self._stall_s and not gone
