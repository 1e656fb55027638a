"""An answer that is written while it is made, so that nobody holds the whole of it.

What fails in its midst ends the connection: a reader sees that the answer is not complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from statevisor.api.host import HOST
from statevisor.api.sse import CLIENT_GONE


async def send(
    request: web.Request, pieces: AsyncIterator[bytes], media: str
) -> web.StreamResponse:
    """Answer with pieces; a client that takes nothing for as long as a stream may stall is left.

    Raises: what the first piece raises, before anything was answered.
    """
    first = await anext(pieces, b"")
    headers = {"Content-Type": media, "Cache-Control": "no-store"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    if request.method != "HEAD":
        try:
            await _write(request, response, first)
            async for piece in pieces:
                await _write(request, response, piece)
        except CLIENT_GONE:
            return response
        except BaseException:
            # A status was sent already: only a connection that breaks can tell.
            if request.transport is not None:
                request.transport.abort()
            raise
    await response.write_eof()
    return response


async def _write(request: web.Request, response: web.StreamResponse, piece: bytes) -> None:
    try:
        async with asyncio.timeout(request.app[HOST].settings.stall_s):
            await response.write(piece)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client takes nothing") from None
