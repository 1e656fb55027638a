"""What a command prints: aligned columns for people, JSON or YAML for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import typer

#: A heading and how its cell is read from a row.
Column = tuple[str, Callable[[Any], Any]]


class Output(StrEnum):
    """The form of what is printed on stdout."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def show(value: Any, output: Output, lines: Callable[[Any], Iterable[str]]) -> None:
    """Print a value; `lines` makes its form for people."""
    if output is Output.JSON:
        typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
    elif output is Output.YAML:
        import yaml

        typer.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)
    else:
        for line in lines(value):
            typer.echo(line)


def cell(value: Any) -> str:
    """One value as a word; `-` for nothing."""
    if value is None or value == "" or value == [] or value == {}:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={cell(inner)}" for key, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(cell(inner) for inner in value)
    return str(value)


def table(columns: Sequence[Column]) -> Callable[[Iterable[Any]], Iterator[str]]:
    """Rows as columns that are as wide as their widest cell, never cut."""

    def lines(rows: Iterable[Any]) -> Iterator[str]:
        grid = [[heading for heading, _ in columns]]
        grid += [[cell(read(row)) for _, read in columns] for row in rows]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        for row in grid:
            yield "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()

    return lines


def facts(value: Mapping[str, Any]) -> Iterator[str]:
    """One `name: value` a line."""
    named = {key: inner for key, inner in value.items() if key != "object"}
    width = max(map(len, named), default=0) + 1
    for key, inner in named.items():
        yield f"{key + ':':<{width}}  {cell(inner)}"
