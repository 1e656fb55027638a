"""Actors: create, read, change, delete, fork, roll back, move between tiers."""

from __future__ import annotations

from aiohttp import web

from statevisor.api.call import Call, Reply, etag
from statevisor.api.wire import NoQuery, Nothing, listing
from statevisor.api.wire_actors import (
    ActorsQuery,
    CreateBody,
    ForkBody,
    HibernateBody,
    ResumeBody,
    RollbackBody,
    UpdateBody,
    actor_object,
    cost_object,
)
from statevisor.api.wire_search import label_pair
from statevisor.hypervisor.commands import ActorView, DeleteActor


def _reply(view: ActorView, status: int = 200) -> Reply:
    headers = etag(view.record.generation)
    if status == 201:
        headers["Location"] = f"/v1/actors/{view.record.name}"
    return Reply(value=actor_object(view), status=status, headers=headers)


async def create(call: Call[CreateBody, NoQuery]) -> Reply:
    """Create an actor; its prompt is absorbed, nothing is sampled."""
    return _reply(await call.visor.create(call.body.command(call.change)), 201)


async def search(call: Call[Nothing, ActorsQuery]) -> Reply:
    """List actors, oldest first."""
    query = call.query
    views, has_more = await call.visor.actors(
        status=query.status,
        model=query.model,
        tier=query.tier,
        label=label_pair(query.label),
        q=query.q,
        limit=query.limit,
        after=query.after,
    )
    return Reply(value=listing([actor_object(view) for view in views], "id", has_more))


async def read(call: Call[Nothing, NoQuery]) -> Reply:
    """Read an actor."""
    return _reply(await call.visor.actor(call.path("a")))


async def update(call: Call[UpdateBody, NoQuery]) -> Reply:
    """Change an actor's name, labels, pin or ttl."""
    return _reply(await call.visor.update(call.body.command(call.path("a"), call.change)))


async def delete(call: Call[Nothing, NoQuery]) -> web.StreamResponse:
    """Delete an actor; its versions stay while others descend from them."""
    await call.visor.delete(DeleteActor(actor=call.path("a"), **call.change))
    return web.Response(status=204)


async def fork(call: Call[ForkBody, NoQuery]) -> Reply:
    """Make children that begin at a position of this actor, all or none."""
    command = call.body.command(call.path("a"), call.change)
    if call.body.dry_run:
        return Reply(value=cost_object(await call.visor.cost(command)))
    children = await call.visor.fork(command)
    return Reply(value=listing([actor_object(child) for child in children], "id"), status=201)


async def rollback(call: Call[RollbackBody, NoQuery]) -> Reply:
    """Go back to an earlier version or position; the old branch stays."""
    command = call.body.command(call.path("a"), call.change)
    if call.body.dry_run:
        return Reply(value=cost_object(await call.visor.cost(command)))
    return _reply(await call.visor.rollback(command))


async def hibernate(call: Call[HibernateBody, NoQuery]) -> Reply:
    """Move an actor to a lower tier and free its slot."""
    return _reply(await call.visor.hibernate(call.body.command(call.path("a"), call.change)))


async def resume(call: Call[ResumeBody, NoQuery]) -> Reply:
    """Move an actor into a slot."""
    return _reply(await call.visor.resume(call.body.command(call.path("a"), call.change)))
