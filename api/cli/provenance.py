"""Provenance: which versions there are, where an actor stood, what makes a state again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any

import typer

from statevisor.api.cli.arguments import ActorName, VersionName
from statevisor.api.cli.client import fields, path
from statevisor.api.cli.output import facts
from statevisor.api.cli.remote import Remote, command
from statevisor.api.cli.units import parse_time
from statevisor.api.cli.versions import verify, version_lines
from statevisor.hypervisor.vocab import Op


def search(
    remote: Remote,
    *,
    tag: Annotated[str | None, typer.Option(help="It has this tag.")] = None,
    label: Annotated[str | None, typer.Option(help="It has this label: KEY or KEY=VALUE.")] = None,
    op: Annotated[Op | None, typer.Option(help="What made it.")] = None,
    agent: Annotated[str | None, typer.Option(help="Who changed the state.")] = None,
    rule: Annotated[str | None, typer.Option(help="By which rule.")] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Made then or later: 2026-01-02T03:04:05Z, or 1h for an hour ago."),
    ] = None,
    until: Annotated[str | None, typer.Option(help="Made before then.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many at most.")] = 50,
) -> None:
    """List versions of all actors, in the order of their creation."""
    asked = fields(
        tag=tag,
        label=label,
        op=op,
        agent=agent,
        rule=rule,
        since=since and parse_time(since),
        until=until and parse_time(until),
    )
    pages = remote.client.pages("/v1/versions", {**asked, "limit": min(limit, 200)})
    remote.show(list(islice(pages, limit)), version_lines)


def head(
    remote: Remote,
    actor: ActorName,
    *,
    at: Annotated[
        str | None, typer.Option(help="Then instead of now: 2026-01-02T03:04:05Z, or 1h.")
    ] = None,
) -> None:
    """Show the version an actor stands at, or stood at then."""
    found = remote.client.get(path("actors", actor, "head"), fields(at=at and parse_time(at)))
    remote.show(found, lambda version: version_lines([version]))


def reproduce(
    remote: Remote,
    version: VersionName,
    *,
    whole: Annotated[bool, typer.Option("--whole", help="From the very beginning.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Carry it out, compare digests.")] = False,
) -> None:
    """Show what makes a version again: a state to begin with, tokens, rules."""
    asked = {"whole": "true"} if whole else {}
    remote.show(remote.client.get(path("versions", version, "recipe"), asked), recipe_lines)
    if check:
        verify(remote, version)


def recipe_lines(recipe: Mapping[str, Any]) -> Iterator[str]:
    """The steps of a recipe, one a line."""
    start = recipe["start"]
    yield from facts(
        {
            "version": recipe["version"]["handle"],
            "model": recipe["model"],
            "build": recipe["version"]["build"],
            "start": f"{start['digest']} at {recipe['position']}" if start else "the empty state",
        }
    )
    for step in recipe["steps"]:
        if step["kind"] == "rule":
            words = [step["rule"], *(f"{key}={value}" for key, value in step["params"].items())]
            yield f"{step['position']:>10}  {' '.join(words)}  -> {step['version']}"
        else:
            yield f"{step['position']:>10}  {len(step['token_ids'])} tokens, {step['kind']}"


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    command(app, "search")(search)
    command(app, "head")(head)
    command(app, "reproduce")(reproduce)
