"""`statevisor bench`: what this machine does with this program, measured now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Only one object with every figure.")]


def show(report: Mapping[str, Any], as_json: bool) -> None:
    """Print a report as one object, or one `path: value` a line."""
    if as_json:
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
        return
    for name, value in _leaves(report):
        typer.echo(f"{name:<48} {value}")


def _leaves(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _leaves(inner, f"{above}{key}.")
        else:
            yield f"{above}{key}", inner


def register(app: typer.Typer) -> None:
    """Add this file's group of commands."""
    group = typer.Typer(no_args_is_help=True, help="Measure this program on this machine.")
    app.add_typer(group, name="bench")
