"""A lineage graph in the languages of other tools: Graphviz, Mermaid, W3C PROV-JSON. Pure.

Each is written whole, or as a stream of text from the parts of a walk.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from statevisor.hypervisor.commands import LineageView
from statevisor.hypervisor.records import VersionRecord

Parts = AsyncIterator[LineageView]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Of the qualified names in a PROV document.
_PREFIX = {"sv": "urn:statevisor:"}
_DOT = ("digraph lineage {", "  rankdir=LR;", "  node [shape=box];")
_PROV = (
    "entity",
    "activity",
    "wasGeneratedBy",
    "agent",
    "wasAssociatedWith",
    "wasDerivedFrom",
    "used",
)


def dot(view: LineageView) -> str:
    """The graph for Graphviz; source: the DOT language's quoted strings."""
    more = ['  truncated [shape=plaintext, label="…"];'] if view.truncated else []
    return "\n".join([*_DOT, *_dot_lines(view), *more, "}", ""])


async def dot_stream(parts: Parts) -> AsyncIterator[str]:
    """As `dot`, piece by piece."""
    yield _text(_DOT)
    async for view in parts:
        yield _text(_dot_lines(view))
    yield "}\n"


def mermaid(view: LineageView) -> str:
    """The graph as a Mermaid flowchart."""
    handles = [*(node.handle for node in view.nodes), *_strangers(view)]
    ids = {handle: f"n{index}" for index, handle in enumerate(handles)}
    lines = ["flowchart LR", *_mermaid_lines(view, ids.__getitem__)]
    if view.truncated:
        lines.append('  truncated["…"]')
    return "\n".join([*lines, ""])


async def mermaid_stream(parts: Parts) -> AsyncIterator[str]:
    """As `mermaid`, piece by piece; every node's id follows from its handle."""
    yield "flowchart LR\n"
    async for view in parts:
        yield _text(_mermaid_lines(view, _word, strangers=False))


def prov(view: LineageView) -> dict[str, Any]:
    """The graph as PROV-JSON: versions are entities, what made them are activities.

    Source: the W3C member submission "The PROV-JSON Serialization" (2013).
    """
    document: dict[str, Any] = {"prefix": _PREFIX}
    for kind, key, fields in _prov_rows(view, 0, 0):
        document.setdefault(kind, {})[key] = fields
    for handle in _strangers(view):
        document.setdefault("entity", {})[_entity(handle)] = {"prov:type": "sv:version"}
    return document


async def prov_stream(walk: Callable[[], Parts]) -> AsyncIterator[str]:
    """As `prov`, piece by piece; walks once for each kind of row, as the form sorts by kind."""
    yield json.dumps({"prefix": _PREFIX})[:-1]
    for wanted in _PROV:
        told: set[str] = set()  # an agent is one, whatever it made
        nodes = edges = 0
        lead = f", {json.dumps(wanted)}: {{"
        async for view in walk():
            rows = []
            for kind, key, fields in _prov_rows(view, nodes, edges):
                if kind == wanted and key not in told:
                    rows.append(f"{lead}\n{json.dumps(key)}: {json.dumps(fields)}")
                    lead = ","
                    if wanted == "agent":
                        told.add(key)
            nodes, edges = nodes + len(view.nodes), edges + len(view.edges)
            yield "".join(rows)
        if lead == ",":
            yield "}"
    yield "}\n"


def _dot_lines(view: LineageView) -> Iterator[str]:
    for node in view.nodes:
        style = ", style=dashed" if node.drift else ""
        label = _quoted("\n".join(_words(node)))
        yield f"  {_quoted(node.handle)} [label={label}{style}];"
    for parent, child, op in view.edges:
        yield f"  {_quoted(parent)} -> {_quoted(child)} [label={_quoted(op)}];"


def _mermaid_lines(
    view: LineageView, name: Callable[[str], str], *, strangers: bool = True
) -> Iterator[str]:
    labels = {node.handle: _words(node) for node in view.nodes}
    labels |= {handle: [handle] for handle in _strangers(view) if strangers}
    for handle, words in labels.items():
        yield f'  {name(handle)}["{"<br/>".join(map(_entities, words))}"]'
    for parent, child, op in view.edges:
        yield f"  {name(parent)} -->|{_entities(op)}| {name(child)}"


def _prov_rows(
    view: LineageView, nodes: int, edges: int
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Kind, key and fields of every row but strangers; so many nodes and edges were before it."""
    for index, node in enumerate(view.nodes, nodes):
        entity, activity = _entity(node.handle), f"sv:made-{node.handle}"
        yield "entity", entity, _facts(node)
        yield "activity", activity, _deed(node)
        made = {"prov:entity": entity, "prov:activity": activity, "prov:time": _iso(node)}
        yield "wasGeneratedBy", f"_:made{index}", made
        if node.agent:
            agent = f"sv:agent-{_local(node.agent)}"
            yield "agent", agent, {"prov:label": node.agent}
            link = {"prov:activity": activity, "prov:agent": agent}
            yield "wasAssociatedWith", f"_:by{index}", link
    for index, (parent, child, _) in enumerate(view.edges, edges):
        derived = {"prov:generatedEntity": _entity(child), "prov:usedEntity": _entity(parent)}
        yield "wasDerivedFrom", f"_:from{index}", derived
        used = {"prov:activity": f"sv:made-{child}", "prov:entity": _entity(parent)}
        yield "used", f"_:used{index}", used


def _words(node: VersionRecord) -> list[str]:
    """What a picture says of a version, line by line."""
    made = f"{node.op.value} {node.rule}" if node.rule else node.op.value
    place = f"{made} at {node.position}" + (", drift" if node.drift else "")
    return [node.handle, place, *([", ".join(node.tags)] if node.tags else [])]


def _strangers(view: LineageView) -> Iterator[str]:
    """Handles that only edges name, each once: the graph was cut there."""
    seen = {node.handle for node in view.nodes}
    for handle in (end for parent, child, _ in view.edges for end in (parent, child)):
        if handle not in seen:
            seen.add(handle)
            yield handle


def _facts(node: VersionRecord) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "prov:type": "sv:version",
        "prov:label": node.handle,
        "sv:actor": node.actor,
        "sv:position": node.position,
        "sv:digest": node.digest,
        "sv:drift": node.drift,
        "sv:build": node.build,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _deed(node: VersionRecord) -> dict[str, Any]:
    deed: dict[str, Any] = {
        "prov:type": f"sv:{node.op.value}",
        "prov:endTime": _iso(node),
        "sv:rule": node.rule,
        "sv:ruleVersion": node.rule_version,
        "sv:params": json.dumps(dict(node.params), sort_keys=True) if node.rule else None,
        "sv:select": json.dumps(dict(node.select), sort_keys=True) if node.rule else None,
        "sv:reason": node.reason,
        "sv:before": node.before,
    }
    return {key: value for key, value in deed.items() if value is not None}


def _text(lines: Iterator[str] | tuple[str, ...]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _entity(handle: str) -> str:
    return f"sv:{handle}"


def _local(text: str) -> str:
    """Any text as the local part of a qualified name."""
    return "".join(
        c if c.isascii() and (c.isalnum() or c in "_-") else f"%{ord(c):02X}" for c in text
    )


def _word(handle: str) -> str:
    """A handle as one word of letters and digits, and no other handle as the same."""
    return "v" + "".join(c if c.isalnum() else f"_{ord(c):x}_" for c in handle)


def _iso(node: VersionRecord) -> str:
    return (_EPOCH + timedelta(microseconds=node.created_at)).isoformat()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _entities(text: str) -> str:
    """Mermaid's own entities; a text may hold anything but markup."""
    return "".join(c if c.isalnum() or c in " @._-:,…/" else f"#{ord(c)};" for c in text)
