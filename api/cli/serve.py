"""`statevisor serve`: a server in this process."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated

import typer

from statevisor.api.cli.arguments import pairs


def serve(
    *,
    model: Annotated[
        str | None, typer.Option(help="A folder with a checkpoint. Default: the embedded demo.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The data folder. Default: ./statevisor-data.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What clients call the model.")] = None,
    host: Annotated[str | None, typer.Option(help="Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="0: any free one. Default: 8000.")] = None,
    port_file: Annotated[
        Path | None, typer.Option(help='Gets {"url"} once the socket listens.')
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="What clients must send; better: $STATEVISOR_TOKEN.")
    ] = None,
    slots: Annotated[int | None, typer.Option(help="Actors that can be awake at once.")] = None,
    host_bytes: Annotated[str | None, typer.Option(help="Budget of the host tier: 2GiB.")] = None,
    durability: Annotated[
        str | None, typer.Option(help="sync: a token is on disk before it is sent; or async.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    threads: Annotated[int | None, typer.Option(help="Of the guest on a CPU.")] = None,
    mode: Annotated[
        str | None, typer.Option(help="exact, or fast: no promise that a replay gives its bits.")
    ] = None,
    accept_drift: Annotated[
        bool, typer.Option("--accept-drift", help="Replay journals of another build.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(help="Processes for HTTP. Default: 2 beside a GPU, else 0.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings.")] = None,
    more: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; repeat it."),
    ] = None,
) -> None:
    """Start a server. Ctrl-C (or SIGTERM) drains it: every state goes to disk."""
    gc.disable()  # what a start makes, it keeps: see api/garbage.py
    from statevisor.api.settings import load

    flags = {
        "model": model,
        "data": data,
        "name": name,
        "host": host,
        "port": port,
        "port_file": port_file,
        "token": token,
        "slots": slots,
        "host_bytes": host_bytes,
        "durability": durability,
        "device": device,
        "threads": threads,
        "mode": mode,
        "accept_drift": accept_drift or None,
        "workers": workers,
        "log_level": log_level,
        **(pairs(more) or {}),
    }
    settings = load(flags, config)
    # After the settings: a wrong flag is told before torch is loaded.
    from statevisor.api.server import run

    run(settings)


def register(app: typer.Typer) -> None:
    """Add this file's command."""
    app.command("serve")(serve)
