"""Tiers: how full they are, and eviction by hand."""

from __future__ import annotations

from statevisor.api.call import Call, Reply
from statevisor.api.wire import NoQuery, Nothing, listing
from statevisor.api.wire_tiers import EvictBody, evict_object, tier_object


async def usage(call: Call[Nothing, NoQuery]) -> Reply:
    """How full each tier is."""
    return Reply(value=listing([tier_object(tier) for tier in await call.visor.tiers()], "tier"))


async def evict(call: Call[EvictBody, NoQuery]) -> Reply:
    """Move idle actors down a tier."""
    view = await call.visor.evict(call.body.command())
    return Reply(value=evict_object(view, call.body.dry_run))
