"""Wait for a server to take work, or for actors to be at rest or where they were sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer

from statevisor.api.cli.client import path
from statevisor.api.cli.remote import Remote, command
from statevisor.api.cli.several import find_all
from statevisor.api.cli.units import parse_duration
from statevisor.hypervisor.errors import ActorNotFound, ActorQuarantined, Unavailable
from statevisor.hypervisor.lifecycle import Power

#: Seconds between two questions.
_AGAIN_S = 0.1
#: What an actor at rest may be.
_RESTING = frozenset({Power.IDLE, Power.HIBERNATED})


def wait(
    remote: Remote,
    actors: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ACTOR]...", help="Names or ids. None: the server itself."),
    ] = None,
    *,
    status: Annotated[
        Power | None,
        typer.Option("--for", help="Until each has this status. Default: idle or hibernated."),
    ] = None,
    timeout: Annotated[str, typer.Option(help="At most so long: 90s, 15m.")] = "10m",
) -> None:
    """Wait until the server takes work, or until actors are at rest.

    Example: statevisor wait alice bob --for hibernated --timeout 1m
    """
    until = time.monotonic() + parse_duration(timeout)
    remote.client.patience_s = 0.0
    wanted = frozenset({status}) if status else _RESTING
    if actors and Power.DELETED not in wanted:  # who is missing is told now, not behind the others
        _until(partial(_all_there, remote, actors[1:]), until)
    for actor in actors or ():
        _until(partial(_arrived, remote, actor, wanted), until)
    if not actors:
        _until(partial(_ready, remote), until)


def _until(check: Callable[[], None], until: float) -> None:
    """Ask again until the check passes. Raises: what it raised last, or what will not pass."""
    while True:
        try:
            return check()
        except Unavailable:
            if time.monotonic() >= until:
                raise
        time.sleep(_AGAIN_S)


def _all_there(remote: Remote, actors: list[str]) -> None:
    find_all(remote.client, actors)


def _ready(remote: Remote) -> None:
    remote.client.get("/ready")
    if remote.plain:
        typer.echo(f"{remote.client.url} is ready")


def _arrived(remote: Remote, actor: str, wanted: frozenset[Power]) -> None:
    status = _status(remote, actor, wanted)
    if status not in wanted:
        if status == Power.QUARANTINED:
            raise ActorQuarantined(f"{actor} is quarantined")
        raise Unavailable(f"{actor} is {status}", hint="Wait longer with --timeout.")
    if remote.plain:
        typer.echo(f"{actor} is {status}")


def _status(remote: Remote, actor: str, wanted: frozenset[Power]) -> str:
    try:
        return str(remote.client.get(path("actors", actor))["status"])
    except ActorNotFound:
        if Power.DELETED not in wanted:
            raise
        return Power.DELETED


def register(app: typer.Typer) -> None:
    """Add this file's command."""
    command(app, "wait")(wait)
