"""`statevisor demo`: the promises, shown on the embedded guest."""

from __future__ import annotations

import json
import signal
from types import FrameType
from typing import Annotated

import typer


def demo(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Only one object: ok, checks, timings_ms.")
    ] = False,
) -> None:
    """Live one story on the embedded guest, kill -9 included, and check every promise."""
    from statevisor.api.demo.run import run
    from statevisor.api.demo.screen import Silent, Terminal

    # Whoever ends this process ends the server it started, too.
    signal.signal(signal.SIGTERM, _leave)
    report = run(Silent() if as_json else Terminal())
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=2, ensure_ascii=False))
    if not report.ok:
        raise typer.Exit(1)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def register(app: typer.Typer) -> None:
    """Add this file's command."""
    app.command("demo")(demo)
