"""Operations: is it alive, is it ready, what does it count, stop taking work."""

from __future__ import annotations

from statevisor.api import metrics
from statevisor.api.call import Call, Reply
from statevisor.api.wire import NoQuery, Nothing
from statevisor.api.wire_tiers import drain_object


async def health(call: Call[Nothing, NoQuery]) -> Reply:
    """Whether the process answers, be it loading or ready."""
    return Reply(value={"status": "ok"})


async def ready(call: Call[Nothing, NoQuery]) -> Reply:
    """Whether it takes work."""
    call.host.check_ready()
    return Reply(value={"status": "ready"})


async def version(call: Call[Nothing, NoQuery]) -> Reply:
    """The version of the server."""
    return Reply(value={"version": call.host.version})


async def scrape(call: Call[Nothing, NoQuery]) -> Reply:
    """Prometheus metrics."""
    page = await call.host.page()
    return Reply(raw=page, headers={"Content-Type": metrics.CONTENT_TYPE})


async def drain(call: Call[Nothing, NoQuery]) -> Reply:
    """Take no new work and bring every state to disk."""
    return Reply(value=drain_object(await call.host.drain()))
