"""The arguments that many commands share, with completion of names from the running server."""

from __future__ import annotations

from typing import Annotated

import typer

from statevisor.api.cli.client import Client, fields, path
from statevisor.api.cli.remote import DEFAULT_URL
from statevisor.hypervisor.errors import StatevisorError
from statevisor.hypervisor.vocab import Rng


def names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of actors for the shell; none if no server answers at once."""
    given = {**context.find_root().params, **fields(**context.params)}
    try:
        client = Client(given.get("url") or DEFAULT_URL, given.get("token"), timeout_s=1.0)
        actors = client.get(path("actors"), {"limit": 200})["data"]
    except StatevisorError:
        return []
    return [actor["name"] for actor in actors if actor["name"].startswith(incomplete)]


ActorName = Annotated[
    str, typer.Argument(metavar="ACTOR", help="Name or id of an actor.", autocompletion=names)
]
VersionName = Annotated[
    str, typer.Argument(metavar="VERSION", help="A handle like alice@3, or a tag.")
]
Reseed = Annotated[
    Rng | None,
    typer.Option("--rng", help="A fresh seed for the sampler (reseed), or the same one."),
]


def place(text: str | None) -> str | int | None:
    """A handle or a tag as it is; digits are a position of the transcript."""
    return int(text) if text is not None and text.isdecimal() else text


def token_list(text: str | None) -> list[int] | None:
    """`1,2,3` as token ids."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a list of token ids like 1,2,3") from error


def pairs(texts: list[str] | None) -> dict[str, str] | None:
    """`k=v` words as a mapping; None stays None."""
    if texts is None:
        return None
    split = [text.partition("=") for text in texts]
    for key, equals, _ in split:
        if not key or not equals:
            raise typer.BadParameter(f"{key!r} is not of the form key=value")
    return {key: value for key, _, value in split}
