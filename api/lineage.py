"""Lineage: the graph around an actor, and questions about it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import orjson
from aiohttp import web

from statevisor.api import chunks
from statevisor.api.call import Call, Reply
from statevisor.api.wire import Nothing
from statevisor.api.wire_versions import (
    BlameQuery,
    LineageQuery,
    PairQuery,
    lineage_object,
    version_object,
)
from statevisor.hypervisor import lineage_export
from statevisor.hypervisor.lineage_export import Parts
from statevisor.hypervisor.vocab import parse_handle

DOT = "text/vnd.graphviz"
LINES = "application/x-ndjson"


async def around(call: Call[Nothing, LineageQuery]) -> Reply | web.StreamResponse:
    """The graph of versions around an actor."""
    return await _drawn(call, call.path("a"))


async def around_version(call: Call[Nothing, LineageQuery]) -> Reply | web.StreamResponse:
    """The graph of versions around a version."""
    key = call.path("v")
    if parse_handle(key) is None:  # a tag, which the visor would take for an actor's name
        record = await call.visor.version(key)
        key = f"{record.actor_id}@{record.seq}"
    return await _drawn(call, key)


async def _drawn(call: Call[Nothing, LineageQuery], key: str) -> Reply | web.StreamResponse:
    query = call.query
    if query.stream:
        return await _streamed(call, key)
    view = await call.visor.lineage(key, query.direction, query.depth, query.limit)
    match query.format:
        case "json":
            return Reply(value=lineage_object(view))
        case "prov":
            return Reply(value=lineage_export.prov(view))
        case "dot":
            return Reply(raw=lineage_export.dot(view).encode(), media=DOT)
        case "mermaid":
            return Reply(raw=lineage_export.mermaid(view).encode(), media="text/plain")


async def _streamed(call: Call[Nothing, LineageQuery], key: str) -> web.StreamResponse:
    """All of the graph, written as it is read."""
    walk = partial(call.visor.walk, key, call.query.direction)
    match call.query.format:
        case "json":
            return await chunks.send(call.request, _json_lines(walk()), LINES)
        case "prov":
            text, media = lineage_export.prov_stream(walk), "application/json"
        case "dot":
            text, media = lineage_export.dot_stream(walk()), f"{DOT}; charset=utf-8"
        case "mermaid":
            text, media = lineage_export.mermaid_stream(walk()), "text/plain; charset=utf-8"
    return await chunks.send(call.request, _encoded(text), media)


async def _json_lines(parts: Parts) -> AsyncIterator[bytes]:
    """Every version and every edge as an object on a line of its own."""
    async for view in parts:
        drawn = lineage_object(view)
        edges = ({"object": "edge", **edge} for edge in drawn["edges"])
        yield b"".join(
            orjson.dumps(one, option=orjson.OPT_APPEND_NEWLINE) for one in (*drawn["nodes"], *edges)
        )


async def _encoded(text: AsyncIterator[str]) -> AsyncIterator[bytes]:
    # The head of a document comes with its first part, so that a refusal comes before both.
    head = await anext(text)
    async for piece in text:
        yield (head + piece).encode()
        head = ""


async def common_ancestor(call: Call[Nothing, PairQuery]) -> Reply:
    """The last version that two versions share."""
    found = await call.visor.common_ancestor(call.query.a, call.query.b)
    return Reply(value=version_object(found))


async def is_ancestor(call: Call[Nothing, PairQuery]) -> Reply:
    """Whether version `b` comes from version `a`, or is it."""
    a, b = call.query.a, call.query.b
    told = await call.visor.is_ancestor(a, b)
    return Reply(value={"object": "ancestry", "a": a, "b": b, "is_ancestor": told})


async def blame(call: Call[Nothing, BlameQuery]) -> Reply:
    """The mutation that last touched a layer, or null."""
    found = await call.visor.blame(call.query.v, call.query.layer)
    return Reply(value=None if found is None else version_object(found))
