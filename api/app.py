"""The aiohttp application: the table of routes, one middleware, one way to answer."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from statevisor.api.auth import authorise
from statevisor.api.call import Call, Reply, read_body, read_change, read_query, read_raw
from statevisor.api.codec import answer_type, encode
from statevisor.api.documents import DESCRIPTION, Description
from statevisor.api.errors import Handler, edge
from statevisor.api.host import HOST, OPENAI, REQUEST_ID, Host
from statevisor.api.route import Route
from statevisor.api.routes import ROUTES
from statevisor.api.wire import NoQuery, Query


def build_app(host: Host, routes: tuple[Route, ...] = ROUTES) -> web.Application:
    """An application that serves the host."""
    app = web.Application(middlewares=[edge])
    app[HOST] = host
    app[DESCRIPTION] = Description(routes, host.version)
    app.on_response_prepare.append(_sign)
    for route in routes:
        path = route.path.replace("{m}", "{m:.+}")  # names of models may hold slashes
        app.router.add_route(route.method, path, endpoint(route))
        if route.method == "GET":
            app.router.add_route("HEAD", path, endpoint(route))
    return app


def endpoint(route: Route) -> Handler:
    """The checks of a route around its handler."""

    async def handle(request: web.Request) -> web.StreamResponse:
        host = request.app[HOST]
        request[OPENAI] = route.openai
        authorise(request, route.scope, host.settings)
        if route.changes:
            await host.turnstile.through()
        call = await _read(route, request, host)
        reply = await (_once(route, call) if route.keeps else route.handler(call))
        return reply if isinstance(reply, web.StreamResponse) else _respond(request, reply)

    return handle


async def _once(route: Route, call: Call[Any, Any]) -> Reply | web.StreamResponse:
    """Answer as before if the request's Idempotency-Key has had an answer, else keep this one."""
    once = call.change["once"]
    if once is None:
        return await route.handler(call)
    kept = await call.visor.kept(once)
    if kept is not None:
        return Reply(value=kept["value"], status=kept["status"])
    reply = await route.handler(call)
    if isinstance(reply, Reply):
        await call.visor.keep(once, {"value": reply.value, "status": reply.status})
    return reply


async def _read(route: Route, request: web.Request, host: Host) -> Call[object, object]:
    settings = host.settings
    limit = settings.import_bytes if route.body is None else settings.body_bytes
    raw = await read_raw(request, limit, settings.body_wait_s)
    kind = "application/octet-stream" if route.body is None else request.headers.get("Content-Type")
    return Call(
        request=request,
        host=host,
        body=raw if route.body is None else read_body(raw, kind, route.body),
        query=_query(route, request),
        change=read_change(request, raw, kind),
    )


def _query(route: Route, request: web.Request) -> Query:
    # probes may be given words of their own; else a word that is not read would be taken for done
    if route.query is NoQuery and (route.scope == "public" or not request.query_string):
        return NoQuery()
    return read_query(request, route.query)


def _respond(request: web.Request, reply: Reply) -> web.Response:
    headers = {"Cache-Control": "no-store", **reply.headers}
    if reply.raw is None:
        media = answer_type(request.headers.get("Accept"))
        body = encode(reply.value, media)
        return web.Response(status=reply.status, body=body, content_type=media, headers=headers)
    if reply.media is not None:
        charset = "" if reply.media.startswith("application/") else "; charset=utf-8"
        headers["Content-Type"] = reply.media + charset
    return web.Response(status=reply.status, body=reply.raw, headers=headers)


async def _sign(request: web.Request, response: web.StreamResponse) -> None:
    """Put on every answer what the request is called and who answers."""
    response.headers["Server"] = f"statevisor/{request.app[HOST].version}"
    if REQUEST_ID in request:
        response.headers["X-Request-Id"] = request[REQUEST_ID]
