"""Actors: list them, look at one, make, pin and delete them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from statevisor.api.cli.arguments import ActorName, pairs, token_list
from statevisor.api.cli.client import fields, path
from statevisor.api.cli.output import facts, table
from statevisor.api.cli.prompt import read_prompt
from statevisor.api.cli.remote import Remote, command
from statevisor.api.cli.several import find_all
from statevisor.api.cli.units import age
from statevisor.hypervisor.errors import ActorNotFound

_COLUMNS = (
    ("NAME", lambda a: a["name"]),
    ("STATUS", lambda a: a["status"]),
    ("TIER", lambda a: a["tier"]),
    ("POSITION", lambda a: a["position"]),
    ("HEAD", lambda a: a["head"]),
    ("PARENT", lambda a: a["parent"]),
    ("MODEL", lambda a: a["model"]),
    ("PINNED", lambda a: a["pinned"]),
    ("LABELS", lambda a: a["labels"]),
    ("AGE", lambda a: age(a["created_at"])),
)
actor_lines = table(_COLUMNS)

Labels = Annotated[
    list[str] | None, typer.Option("--label", "-l", help="key=value; may be repeated.")
]


def ls(
    remote: Remote,
    *,
    status: Annotated[str | None, typer.Option(help="Only actors in this status.")] = None,
    tier: Annotated[str | None, typer.Option(help="Only actors in this tier.")] = None,
    model: Annotated[str | None, typer.Option(help="Only actors of this model.")] = None,
    label: Annotated[str | None, typer.Option("--label", "-l", help="key or key=value.")] = None,
    query: Annotated[str | None, typer.Option("--query", "-q", help="Part of a name.")] = None,
) -> None:
    """List the actors."""
    asked = fields(status=status, tier=tier, model=model, label=label, q=query)
    remote.show(list(remote.client.pages(path("actors"), asked)), actor_lines)


def info(remote: Remote, actor: ActorName) -> None:
    """Show one actor."""
    remote.show(remote.client.get(path("actors", actor)), facts)


def create(
    remote: Remote,
    name: Annotated[str | None, typer.Argument(help="Left out: the server invents one.")] = None,
    *,
    model: Annotated[str | None, typer.Option(help="Left out: the server's default.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="A first text; `-` reads standard input.")
    ] = None,
    tokens: Annotated[str | None, typer.Option(help="A first text as ids: 1,2,3.")] = None,
    source: Annotated[
        str | None, typer.Option("--from", help="Begin at this version (alice@3 or a tag).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampler.")] = None,
    label: Labels = None,
) -> None:
    """Make an actor. Its first text is read, nothing is generated."""
    body: dict[str, Any] = fields(
        name=name,
        model=model,
        prompt=read_prompt(prompt),
        token_ids=token_list(tokens),
        seed=seed,
        labels=pairs(label),
    )
    if source is not None:
        body["from"] = source
    remote.show(remote.client.post(path("actors"), body), lambda actor: actor_lines([actor]))


def rm(
    remote: Remote,
    actors: Annotated[list[str], typer.Argument(metavar="ACTOR...", help="Names or ids.")],
) -> None:
    """Delete actors, none if one is missing. Their journal stays while others descend from it."""
    try:
        found = find_all(remote.client, actors)
    except ActorNotFound as error:
        raise ActorNotFound(error.detail, hint=f"Nothing was deleted. {error.hint}") from None
    # by id: a name that is given away meanwhile takes nobody else with it
    for key, actor in found.items():
        remote.client.delete(path("actors", key))
        if remote.plain:
            typer.echo(f"{actor} deleted")


def pin(remote: Remote, actor: ActorName) -> None:
    """Keep an actor in its slot: it is never evicted."""
    _patch(remote, actor, pinned=True)


def unpin(remote: Remote, actor: ActorName) -> None:
    """Let an actor be evicted again."""
    _patch(remote, actor, pinned=False)


def rename(remote: Remote, actor: ActorName, name: str) -> None:
    """Give an actor another name."""
    _patch(remote, actor, name=name)


def label(
    remote: Remote,
    actor: ActorName,
    labels: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="None: it has none.")
    ] = None,
) -> None:
    """Replace an actor's labels."""
    _patch(remote, actor, labels=pairs(labels) or {})


def _patch(remote: Remote, actor: str, **change: Any) -> None:
    remote.show(
        remote.client.patch(path("actors", actor), change), lambda changed: actor_lines([changed])
    )


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    command(app, "ls")(ls)
    command(app, "info")(info)
    command(app, "create")(create)
    command(app, "rm")(rm)
    command(app, "pin")(pin)
    command(app, "unpin")(unpin)
    command(app, "rename")(rename)
    command(app, "label")(label)
