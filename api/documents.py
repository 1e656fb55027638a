"""The description of the surface, for programs and for people."""

from __future__ import annotations

from statevisor.api.call import Call, Reply
from statevisor.api.host import DOCS_PAGE, OPENAPI
from statevisor.api.wire import NoQuery, Nothing

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


async def openapi(call: Call[Nothing, NoQuery]) -> Reply:
    """This description."""
    return Reply(raw=call.request.app[OPENAPI], media="application/json")


async def page(call: Call[Nothing, NoQuery]) -> Reply:
    """This description for people."""
    return Reply(
        raw=call.request.app[DOCS_PAGE],
        media="text/html",
        headers={"Content-Security-Policy": _POLICY},
    )
