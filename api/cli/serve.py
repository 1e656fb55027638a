"""`statevisor serve`: start a server in this process."""

from __future__ import annotations

import typer


def serve() -> None:
    """Start a server."""


def register(app: typer.Typer) -> None:
    """Add this file's command."""
    app.command("serve")(serve)
