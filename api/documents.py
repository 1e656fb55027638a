"""The description of the surface, for programs and for people."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import orjson
from aiohttp import web

from statevisor.api import docs_page, openapi
from statevisor.api.call import Call, Reply
from statevisor.api.route import Route
from statevisor.api.wire import NoQuery, Nothing

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class Description:
    """A table of routes as documents, made when somebody asks."""

    def __init__(self, routes: Sequence[Route], version: str) -> None:
        self._routes = routes
        self._version = version

    @functools.cached_property
    def document(self) -> dict[str, Any]:
        """The OpenAPI document."""
        return openapi.document(self._routes, self._version)

    @functools.cached_property
    def json(self) -> bytes:
        """The OpenAPI document as JSON."""
        return orjson.dumps(self.document)

    @functools.cached_property
    def page(self) -> bytes:
        """The page."""
        return docs_page.render(self.document).encode()


DESCRIPTION = web.AppKey("description", Description)


async def describe(call: Call[Nothing, NoQuery]) -> Reply:
    """This description."""
    return Reply(raw=call.request.app[DESCRIPTION].json, media="application/json")


async def page(call: Call[Nothing, NoQuery]) -> Reply:
    """This description for people."""
    return Reply(
        raw=call.request.app[DESCRIPTION].page,
        media="text/html",
        headers={"Content-Security-Policy": _POLICY},
    )
