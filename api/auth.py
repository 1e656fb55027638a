"""Who may call what.

A server without a token trusts whoever reaches its socket. Web pages reach it too, through the
browser of somebody on this machine; so pages of other sites are kept out: by the Origin of their
requests, and, where the socket is for this machine alone, by the name under which they ask (a
page can have any name of its own point at this machine).
"""

from __future__ import annotations

import hmac
import ipaddress
from typing import Literal
from urllib.parse import urlsplit

from aiohttp import web

from statevisor.api.settings import ServerSettings
from statevisor.hypervisor.errors import Forbidden, InvalidApiKey

#: What a route asks of the caller; the one token of the settings has every scope.
Scope = Literal["public", "infer", "actors", "admin"]

_HINT = "Ask for the server by its address, or start it with a token."
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def authorise(request: web.Request, scope: Scope, settings: ServerSettings) -> None:
    """Raises: InvalidApiKey, Forbidden."""
    if scope == "public":
        return
    if settings.token is None:
        _refuse_other_sites(request, settings)
        return
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer" or not hmac.compare_digest(
        given.strip().encode(errors="replace"), settings.token.encode()
    ):
        raise InvalidApiKey


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refuse_other_sites(request: web.Request, settings: ServerSettings) -> None:
    origin = request.headers.get("Origin")
    foreign = origin is not None and request.method not in _SAFE_METHODS
    if foreign and origin != f"{request.scheme}://{request.host}":
        raise Forbidden("a web page of another site may not do this", hint=_HINT)
    if is_loopback(settings.host) and not _is_no_domain(request.host):
        raise Forbidden(f"this server is not called {request.host[:100]!r}", hint=_HINT)


def _is_no_domain(host: str) -> bool:
    """Whether the Host header is an address or localhost, which no other site can own."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False
