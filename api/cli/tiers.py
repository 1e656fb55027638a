"""Tiers: where states lie, and moving them by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from statevisor.api.cli.actors import actor_lines
from statevisor.api.cli.arguments import ActorName
from statevisor.api.cli.client import fields, path
from statevisor.api.cli.output import table
from statevisor.api.cli.remote import Remote, command
from statevisor.api.cli.units import parse_duration, parse_size, size

tier_lines = table(
    (
        ("TIER", lambda t: t["tier"]),
        ("ACTORS", lambda t: t["actors"]),
        ("SLOTS", lambda t: t["slots"] and f"{t['slots']['used']}/{t['slots']['capacity']}"),
        ("USED", lambda t: size(t["used_bytes"])),
        ("CAPACITY", lambda t: size(t["capacity_bytes"])),
    )
)


class UpperTier(StrEnum):
    """The tiers that room can be made in."""

    GPU = "gpu"
    HOST = "host"


class LowerTier(StrEnum):
    """The tiers an actor can be sent to."""

    HOST = "host"
    NVME = "nvme"


def tiers(remote: Remote) -> None:
    """Show how full each tier is."""
    remote.show(remote.client.get(path("tiers"))["data"], tier_lines)


def hibernate(
    remote: Remote,
    actor: ActorName,
    *,
    tier: Annotated[LowerTier, typer.Option(help="Where its state goes.")] = LowerTier.NVME,
) -> None:
    """Send an actor to a lower tier; its slot is free when this ends."""
    moved = remote.client.post(path("actors", actor, "hibernate"), {"tier": tier})
    remote.show(moved, lambda actor: actor_lines([actor]))


def resume(remote: Remote, actor: ActorName) -> None:
    """Bring an actor back into a slot."""
    moved = remote.client.post(path("actors", actor, "resume"))
    remote.show(moved, lambda actor: actor_lines([actor]))


def evict(
    remote: Remote,
    *,
    source: Annotated[UpperTier, typer.Option("--from", help="The tier to make room in.")],
    target: Annotated[LowerTier, typer.Option("--to", help="The tier they go to.")],
    actor: Annotated[list[str] | None, typer.Option(help="Only this one; repeat it.")] = None,
    older_than: Annotated[str | None, typer.Option("--older-than", help="Idle: 15m, 1h.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
    nbytes: Annotated[str | None, typer.Option("--bytes", help="At least so much: 2GiB.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which.")] = False,
) -> None:
    """Make room in a tier; running and pinned actors are left alone.

    Give one of --actor, --older-than, --count and --bytes, or none for all.
    """
    body = fields(
        actors=actor or None,
        older_than_s=parse_duration(older_than) if older_than else None,
        bytes=parse_size(nbytes) if nbytes else None,
        count=count,
        dry_run=dry_run or None,
    )
    answer = remote.client.post(
        path("tiers", "evict"), {"from": str(source), "to": str(target), **body}
    )
    remote.show(answer, lambda moved: _moved(moved, dry_run))


def _moved(answer: Mapping[str, Any], dry_run: bool) -> Iterator[str]:
    verb = "would move" if dry_run else "moved"
    yield f"{verb} {len(answer['moved'])} actors, {size(answer['bytes'])}"
    yield from answer["moved"]
    for name in answer.get("skipped", ()):
        yield f"{name} (running or pinned: left alone)"


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    command(app, "tiers")(tiers)
    command(app, "hibernate")(hibernate)
    command(app, "resume")(resume)
    command(app, "evict")(evict)
