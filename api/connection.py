"""One client's connection: what is no request, too, is answered with a code and a next step.

The parser refuses before there is a route, so the middleware of the routes never sees it. Nor does
it see a head that stops arriving, which would hold its connection for ever.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import _ErrInfo

from statevisor.api.errors import account, error_response, request_id_of
from statevisor.api.host import REQUEST_ID, Host
from statevisor.hypervisor.errors import (
    Draining,
    HeadLate,
    HeadTooLarge,
    MalformedRequest,
    StatevisorError,
)

#: Seconds in which a refused client that still sends may come to read the answer.
_LINGER_S = 2.0

log = structlog.get_logger(__name__)


class Connection(web.RequestHandler):
    """The protocol of one connection."""

    __slots__ = ("_body", "_head", "_host", "_read", "_refused")

    def __init__(self, host: Host, server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            auto_decompress=False,  # packed bodies are refused: see api/call.py
        )
        self._host = host
        self._refused = False
        self._head: asyncio.TimerHandle | None = None  #: runs while a head is incomplete
        self._read = 0  #: requests whose heads came through `data_received`
        self._body: StreamReader = EMPTY_PAYLOAD  #: of the last of them

    def data_received(self, data: bytes) -> None:
        """Read on; a head that has begun must be complete in time."""
        before = self._request_count
        between = self._body.is_eof() and before == self._read
        super().data_received(data)
        if self._request_count != before:
            # What came behind it in the same bytes may begin another head. Its next byte tells, and
            # until then the connection is like one that idles.
            self._read, self._body = self._request_count, self._messages[-1][1]
            self._end_head()
        elif between and self._head is None and data.strip(b"\r\n"):  # these may end a request
            self._head = self._loop.call_later(self._host.settings.head_wait_s, self._refuse_head)

    def stop_reading(self) -> None:
        """Wait no longer for what is missing of a body: the server ends, and says so."""
        if self._body.is_eof():
            return
        self.close()  # what still comes is dropped
        if self._request_in_progress or self._messages:
            self._body.set_exception(Draining())
        else:  # it was answered, and lingers
            self._body.feed_eof()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Nobody waits for a head any more."""
        self._end_head()
        super().connection_lost(exc)

    def _end_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _refuse_head(self) -> None:
        """Answer, behind the requests before it, to a head that is still incomplete."""
        self._head = None
        if self._force_close or self._request_count != self._read:  # it was read another way
            return
        late = HeadLate(f"the head was not complete within {self._host.settings.head_wait_s:g} s")
        self._messages.append((_ErrInfo(408, late, late.detail), EMPTY_PAYLOAD))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is no request, or failed outside of the middleware.

        Raises: ConnectionError (an answer has begun).
        """
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun")
        if status < 500:
            return self._refuse(request, _unread(exc, message))
        log.error("unexpected", exc_info=exc)
        return self._refuse(request, StatevisorError())

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; behind a refusal, leave the client time to read it."""
        if isinstance(resp, web.HTTPException):  # of the framework, outside of the middleware
            resp = self._refuse(request, MalformedRequest(resp.text or resp.reason))
        sent = await super().finish_response(request, resp, start_time)
        if self._close and not self._body.is_eof():
            self._body.feed_eof()  # nobody reads on
        if self._refused:
            await self._linger()
        return sent

    def _refuse(self, request: web.BaseRequest, error: StatevisorError) -> web.StreamResponse:
        assert isinstance(request, web.Request)
        request[REQUEST_ID] = request_id_of(request)
        response = error_response(request, error)
        response.headers["Server"] = f"statevisor/{self._host.version}"
        response.headers["X-Request-Id"] = request[REQUEST_ID]
        response.headers["Connection"] = "close"
        response.force_close()
        account(self._host.meter, request.method, "none", response.status, 0.0)
        self._refused = True
        return response

    async def _linger(self) -> None:
        """Take in and drop what still comes: to close at once could take the answer back."""
        self.close()
        if self.transport is not None and self.transport.can_write_eof():
            self.transport.write_eof()
        # a client that hangs up cancels this
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                await asyncio.get_running_loop().create_future()


def _unread(error: BaseException | None, message: str | None) -> StatevisorError:
    if isinstance(error, StatevisorError):
        return error
    if isinstance(error, LineTooLong):
        return HeadTooLarge()
    reason = (message or "").strip().partition("\n")[0].rstrip(": ")
    return MalformedRequest(f"this is no HTTP request: {reason[:200]}" if reason else None)
