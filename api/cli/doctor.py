"""`statevisor doctor`: is this machine fit to serve?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from statevisor.api.cli.client import Client
from statevisor.api.cli.output import Output, show
from statevisor.api.cli.remote import Defaults
from statevisor.hypervisor.errors import Unfit


def doctor(
    context: typer.Context,
    *,
    data: Annotated[Path, typer.Option(envvar="STATEVISOR_DATA", help="The data folder.")] = Path(
        "statevisor-data"
    ),
    host: Annotated[
        str, typer.Option(envvar="STATEVISOR_HOST", help="Where a server would listen.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            envvar="STATEVISOR_PORT",
            min=0,
            max=65535,
            help="Its port. Default: that of $STATEVISOR_URL, else 8000.",
        ),
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Load torch, try every device.")] = False,
    output: Annotated[Output | None, typer.Option("--output", "-o")] = None,
) -> None:
    """Check Python, libraries, GPU, disk, data folder and port; change nothing."""
    from statevisor.api.doctor import State, examine

    defaults = context.find_object(Defaults) or Defaults()
    if port is None:
        port = Client(defaults.url).port or 8000
    found = list(examine(data, host, port, deep=deep))
    rows = [
        {"name": c.name, "state": c.state.value, "detail": c.detail, "advice": c.advice}
        for c in found
    ]
    show(rows, output or defaults.output, _lines)
    failed = [check.name for check in found if check.state is State.FAIL]
    if failed:
        raise Unfit(f"not fit to serve: {', '.join(failed)}")


def _lines(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        yield f"{row['state']:<4}  {row['name']:<8}  {row['detail']}"
        if row["advice"]:
            yield f"      {'':<8}  next: {row['advice']}"


def register(app: typer.Typer) -> None:
    """Add this file's command."""
    app.command("doctor")(doctor)
