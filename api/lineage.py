"""Lineage: the graph around an actor, and questions about it."""

from __future__ import annotations

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


async def around(call: Call[Nothing, LineageQuery]) -> Reply:
    """The graph of versions around an actor."""
    return await _drawn(call, call.path("a"))


async def around_version(call: Call[Nothing, LineageQuery]) -> Reply:
    """The graph of versions around a version."""
    record = await call.visor.version(call.path("v"))
    return await _drawn(call, f"{record.actor_id}@{record.seq}")


async def _drawn(call: Call[Nothing, LineageQuery], key: str) -> Reply:
    query = call.query
    view = await call.visor.lineage(key, query.direction, query.depth)
    match query.format:
        case "json":
            return Reply(value=lineage_object(view))
        case "prov":
            return Reply(value=lineage_export.prov(view))
        case "dot":
            return Reply(raw=lineage_export.dot(view).encode(), media="text/vnd.graphviz")
        case "mermaid":
            return Reply(raw=lineage_export.mermaid(view).encode(), media="text/plain")


async def common_ancestor(call: Call[Nothing, PairQuery]) -> Reply:
    """The newest version that two versions share."""
    found = await call.visor.common_ancestor(call.query.a, call.query.b)
    return Reply(value=version_object(found))


async def blame(call: Call[Nothing, BlameQuery]) -> Reply:
    """The mutation that last touched a layer, or null."""
    found = await call.visor.blame(call.query.v, call.query.layer)
    return Reply(value=None if found is None else version_object(found))
