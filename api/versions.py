"""Versions: snapshot, mutate, read, compare, verify, export, import."""

from __future__ import annotations

import asyncio

from blake3 import blake3

from statevisor.api.call import Call, Reply
from statevisor.api.wire import NoQuery, Nothing, listing
from statevisor.api.wire_recipes import RecipeQuery, recipe_object
from statevisor.api.wire_search import HeadQuery, SearchQuery, microseconds
from statevisor.api.wire_versions import (
    ImportQuery,
    MutateBody,
    SnapshotBody,
    VersionsQuery,
    WaitQuery,
    diff_object,
    verify_object,
    version_object,
)
from statevisor.hypervisor.commands import ImportImage
from statevisor.hypervisor.errors import (
    FileCorrupt,
    ImageCorrupt,
    InvalidCursor,
    VersionNotFound,
)
from statevisor.hypervisor.records import VersionRecord

#: safetensors has no registered media type.
SAFETENSORS = "application/octet-stream"


def _made(record: VersionRecord) -> Reply:
    location = {"Location": f"/v1/versions/{record.handle}"}
    return Reply(value=version_object(record), status=201, headers=location)


async def snapshot(call: Call[SnapshotBody, WaitQuery]) -> Reply:
    """Name the last committed position as a version."""
    command = call.body.command(call.path("a"), call.query.wait, call.change)
    return _made(await call.visor.snapshot(command))


async def mutate(call: Call[MutateBody, NoQuery]) -> Reply:
    """Run a rule on the actor's state; its head moves to the result."""
    return _made(await call.visor.mutate(call.body.command(call.path("a"), call.change)))


async def of_actor(call: Call[Nothing, VersionsQuery]) -> Reply:
    """List an actor's versions, oldest first."""
    key, query = call.path("a"), call.query
    if query.after is not None:
        await _check_of(call, key, query.after)
    found, has_more = await call.visor.versions(key, query.after_seq, query.limit)
    if query.stop is not None and any(record.seq >= query.stop for record in found):
        found, has_more = tuple(r for r in found if r.seq < query.stop), False
    return Reply(value=listing([version_object(record) for record in found], "handle", has_more))


async def _check_of(call: Call[Nothing, VersionsQuery], key: str, after: str) -> None:
    """Raises: InvalidCursor (it is a version of another actor, or of none)."""
    if after.partition("@")[0] == key:
        return
    owner = (await call.visor.actor(key)).record  # may be named by its id
    try:
        of = (await call.visor.version(after)).actor_id
    except VersionNotFound:
        of = None
    if of != owner.id:
        raise InvalidCursor(f"{after!r} is no version of {owner.name}")


async def search(call: Call[Nothing, SearchQuery]) -> Reply:
    """List versions of all actors, in the order of their creation."""
    query = call.query.query()
    try:
        found, has_more = await call.visor.search(query)
    except VersionNotFound as error:  # of `after`: a tag that nothing has is an empty list
        raise InvalidCursor(error.detail) from None
    return Reply(value=listing([version_object(record) for record in found], "handle", has_more))


async def head(call: Call[Nothing, HeadQuery]) -> Reply:
    """The version an actor stands at, or stood at then."""
    found = await call.visor.head(call.path("a"), microseconds(call.query.at))
    return Reply(value=version_object(found))


async def recipe(call: Call[Nothing, RecipeQuery]) -> Reply:
    """What makes a version again: a state to begin with, tokens, rules."""
    view = await call.visor.recipe(call.path("v"), whole=call.query.whole)
    return Reply(value=recipe_object(view))


async def read(call: Call[Nothing, WaitQuery]) -> Reply:
    """Read a version; with `wait` once its image is written, so that it has a digest."""
    version = await call.visor.version(call.path("v"), wait=call.query.wait)
    return Reply(value=version_object(version))


async def diff(call: Call[Nothing, NoQuery]) -> Reply:
    """Compare two versions: tokens and state."""
    return Reply(value=diff_object(await call.visor.diff(call.path("v"), call.path("w"))))


async def verify(call: Call[Nothing, NoQuery]) -> Reply:
    """Re-derive a version from its ancestors and compare digests."""
    return Reply(value=verify_object(await call.visor.verify(call.path("v"))))


async def export(call: Call[Nothing, NoQuery]) -> Reply:
    """The version's image as one safetensors file; its digest is the ETag."""
    ref = call.path("v")
    file = await call.visor.export(ref)
    headers = {
        "Content-Disposition": f'attachment; filename="{ref}.safetensors"',
        "ETag": f'"{await asyncio.to_thread(_digest, file)}"',
    }
    return Reply(raw=file, media=SAFETENSORS, headers=headers)


async def bring_in(call: Call[bytes, ImportQuery]) -> Reply:
    """Make an actor from an exported file."""
    query = call.query
    if query.digest is not None:
        found = await asyncio.to_thread(_digest, call.body)
        if found != query.digest:
            raise FileCorrupt(f"the file has the digest {found}, not {query.digest}")
    command = ImportImage(
        name=query.name, model=query.model, file=call.body, once=call.change["once"]
    )
    try:
        return _made(await call.visor.import_image(command))
    except ImageCorrupt as error:
        # here it is not our disk that is at fault
        raise FileCorrupt(error.detail) from None


def _digest(file: bytes) -> str:
    return f"blake3:{blake3(file).hexdigest()}"
