"""Who may call what.

A server without a token trusts whoever reaches its socket, so it keeps web pages of other sites
out: their requests carry an Origin that is not ours.
"""

from __future__ import annotations

import hmac
from typing import Literal
from urllib.parse import urlsplit

from aiohttp import web

from statevisor.hypervisor.errors import Forbidden, InvalidApiKey

#: What a route asks of the caller; the one token of the settings has every scope.
Scope = Literal["public", "infer", "actors", "admin"]

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def authorise(request: web.Request, scope: Scope, token: str | None) -> None:
    """Raises: InvalidApiKey, Forbidden."""
    if scope == "public":
        return
    if token is None:
        _refuse_other_sites(request)
        return
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer" or not hmac.compare_digest(
        given.strip().encode(errors="replace"), token.encode()
    ):
        raise InvalidApiKey


def _refuse_other_sites(request: web.Request) -> None:
    origin = request.headers.get("Origin")
    if request.method in _SAFE_METHODS or origin is None:
        return
    if urlsplit(origin).netloc != request.host:
        raise Forbidden(
            "a web page of another site may not do this",
            hint="Serve the page from this server, or start the server with a token.",
        )
