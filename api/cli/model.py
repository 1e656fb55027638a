"""Models: which guests the server holds."""

from __future__ import annotations

from typing import Annotated

import typer

from statevisor.api.cli.client import path
from statevisor.api.cli.output import facts, table
from statevisor.api.cli.remote import Remote, command
from statevisor.api.cli.units import size

_lines = table(
    (
        ("MODEL", lambda m: m["id"]),
        ("FAMILY", lambda m: m["family"]),
        ("STATE", lambda m: size(m["state_bytes"])),
        ("SLOTS", lambda m: m["slots"]),
        ("BUILD", lambda m: m["fingerprints"]["build"][:19]),
    )
)


def ls(remote: Remote) -> None:
    """List the loaded models."""
    remote.show(remote.client.get(path("models"))["data"], _lines)


def info(
    remote: Remote, model: Annotated[str, typer.Argument(metavar="MODEL", help="Its name.")]
) -> None:
    """Show one model."""
    remote.show(remote.client.get(path("models", model)), facts)


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    group = typer.Typer(no_args_is_help=True, help="Look at the loaded models.")
    command(group, "ls")(ls)
    command(group, "info")(info)
    app.add_typer(group, name="model")
