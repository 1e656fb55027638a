"""Lineage: where an actor's states come from, as a tree, a graph or an answer about one layer."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from statevisor.api.cli.arguments import VersionName
from statevisor.api.cli.client import Client, fields, path
from statevisor.api.cli.output import facts
from statevisor.api.cli.remote import Remote, command
from statevisor.api.cli.versions import version_lines
from statevisor.hypervisor.errors import ActorNotFound, InvalidRequest, VersionNotFound


class Format(StrEnum):
    """How a lineage is drawn."""

    TREE = "tree"
    DOT = "dot"
    MERMAID = "mermaid"
    PROV = "prov"
    JSON = "json"


class Direction(StrEnum):
    """Which part of a lineage is drawn: by default all that shares its beginning."""

    FAMILY = "family"
    ANCESTORS = "ancestors"
    DESCENDANTS = "descendants"
    BOTH = "both"


def lineage(
    remote: Remote,
    start: Annotated[
        str, typer.Argument(metavar="ACTOR|VERSION", help="A name, an id, a handle, or a tag.")
    ],
    *,
    form: Annotated[Format, typer.Option("--format")] = Format.TREE,
    direction: Annotated[Direction, typer.Option()] = Direction.FAMILY,
    depth: Annotated[int | None, typer.Option(min=1, help="Steps at most.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Versions at most, nearest first.")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--all", help="However large: not for a tree. JSON: an object a line.")
    ] = False,
) -> None:
    """Draw where an actor or a version comes from, and what came of it."""
    asked = fields(direction=direction, depth=depth, limit=limit)
    draw = partial(_draw, remote, form=form, direction=direction, asked=asked, whole=whole)
    try:
        draw(start)
    except ActorNotFound:
        try:
            handle = remote.client.get(path("versions", start))["handle"]
        except VersionNotFound:
            handle = None
        if handle is None:
            raise
        draw(handle)  # it is a tag


def _draw(
    remote: Remote,
    start: str,
    *,
    form: Format,
    direction: Direction,
    asked: Mapping[str, Any],
    whole: bool,
) -> None:
    route = around(start)
    if direction is Direction.FAMILY:
        route = around(beginning(remote.client, start))
        asked = {**asked, "direction": Direction.DESCENDANTS}
    if whole:
        if form is Format.TREE:
            raise InvalidRequest("a tree is not drawn of everything", hint="Choose a --format.")
        _copy(remote.client, route, {**asked, "format": form, "stream": "true"})
        return
    if form in (Format.DOT, Format.MERMAID, Format.PROV):
        typer.echo(remote.client.text(route, {**asked, "format": form}).rstrip("\n"))
        return
    graph = remote.client.get(route, {**asked, "format": "json"})
    if form is Format.JSON and remote.plain:
        import json

        typer.echo(json.dumps(graph, indent=2, ensure_ascii=False))
    else:
        remote.show(graph, tree)


def _copy(client: Client, route: str, asked: Mapping[str, Any]) -> None:
    """Write an answer to stdout while it arrives."""
    with client.download(route, asked) as (_, pieces):
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def around(start: str) -> str:
    """The route of the lineage around an actor or a version."""
    return path("versions" if "@" in start else "actors", start, "lineage")


def beginning(client: Client, start: str) -> str:
    """The version that the line of first parents of an actor or a version begins with."""
    if "@" in start:
        handle = client.get(path("versions", start))["handle"]
    else:
        handle = client.get(path("actors", start))["head"]
    graph = client.get(around(start), {"direction": Direction.ANCESTORS})
    parents = {node["handle"]: node["parents"] for node in graph["nodes"]}
    while parents.get(handle) and parents[handle][0] in parents:
        handle = parents[handle][0]
    return str(handle)


def family(client: Client, start: str) -> dict[str, Any]:
    """The graph of all that shares the beginning of an actor or a version."""
    asked = {"direction": Direction.DESCENDANTS}
    graph: dict[str, Any] = client.get(around(beginning(client, start)), asked)
    return graph


def tree(graph: Mapping[str, Any]) -> Iterator[str]:
    """A lineage as an indented tree; a version with several parents hangs below its first.

    A single child continues its parent's column, so that a long life is not a long staircase.
    """
    nodes = {node["handle"]: node for node in graph["nodes"]}
    children: dict[str, list[str]] = {handle: [] for handle in nodes}
    roots = []
    for handle, node in nodes.items():
        above = next((parent for parent in node["parents"] if parent in nodes), None)
        if above is None:
            roots.append(handle)
        else:
            children[above].append(handle)
    # (handle, prefix of its own line, prefix of what hangs below it); a stack, for a life may be
    # thousands of versions long
    todo = [(root, "", "") for root in reversed(roots)]
    while todo:
        handle, first, rest = todo.pop()
        yield first + _describe(nodes[handle])
        below = children[handle]
        if len(below) == 1:
            todo.append((below[0], rest, rest))
            continue
        for child in reversed(below):
            last = child is below[-1]
            todo.append(
                (child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))
            )
    if graph.get("truncated"):
        yield "… (more: raise --depth)"


def _describe(node: Mapping[str, Any]) -> str:
    words = [node["handle"], node["op"]]
    if node["rule"]:
        words.append(node["rule"])
    words.append(f"at {node['position']}")
    words += [f"+{parent}" for parent in node["parents"][1:]]
    words += [f"[{tag}]" for tag in node["tags"]]
    if node["drift"]:
        words.append("drift")
    return " ".join(words)


def blame(
    remote: Remote,
    version: VersionName,
    *,
    layer: Annotated[int, typer.Option("--layer", "-L", help="The layer asked about.")],
) -> None:
    """Name the mutation that last touched a layer."""
    found = remote.client.get("/v1/lineage/blame", {"v": version, "layer": layer})
    remote.show(found, lambda made: facts(made) if made else ["no mutation touched it"])


def is_ancestor(
    remote: Remote,
    ancestor: VersionName,
    version: Annotated[str, typer.Argument(metavar="OTHER", help="A handle, or a tag.")],
) -> None:
    """Say whether OTHER comes from VERSION, or is it."""
    found = remote.client.get("/v1/lineage/is-ancestor", {"a": ancestor, "b": version})
    remote.show(found, lambda told: ["yes" if told["is_ancestor"] else "no"])


def common_ancestor(
    remote: Remote,
    version: VersionName,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="A handle, or a tag.")],
) -> None:
    """Show the last version that both come from; it may be one of the two.

    Example: statevisor common-ancestor alice@4 bob@2
    """
    found = remote.client.get("/v1/lineage/common-ancestor", {"a": version, "b": other})
    remote.show(found, lambda made: version_lines([made]))


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    command(app, "lineage")(lineage)
    command(app, "blame")(blame)
    command(app, "is-ancestor")(is_ancestor)
    command(app, "common-ancestor")(common_ancestor)
