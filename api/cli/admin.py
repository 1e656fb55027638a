"""Administration of a running server."""

from __future__ import annotations

import typer

from statevisor.api.cli.client import path
from statevisor.api.cli.output import facts
from statevisor.api.cli.remote import Remote, command
from statevisor.hypervisor.errors import StatevisorError


def drain(remote: Remote) -> None:
    """Hibernate every actor to nvme and take no new work, before a stop or a change of build."""
    answer = remote.client.post(path("admin", "drain"))
    remote.show(answer, facts)
    if answer["failed"]:
        raise StatevisorError(
            f"{len(answer['failed'])} actors could not be hibernated",
            hint="Their journals are complete, but a new build cannot replay them: look at each.",
        )


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    group = typer.Typer(help="Administer a running server.")
    # With one command typer would drop the group's own name.
    group.callback()(lambda: None)
    command(group, "drain")(drain)
    app.add_typer(group, name="admin")
