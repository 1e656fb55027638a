"""A lineage graph in the languages of other tools: Graphviz, Mermaid, W3C PROV-JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from statevisor.hypervisor.commands import LineageView
from statevisor.hypervisor.records import VersionRecord

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Of the qualified names in a PROV document.
_NAMESPACE = "urn:statevisor:"


def dot(view: LineageView) -> str:
    """The graph for Graphviz; source: the DOT language's quoted strings."""
    lines = ["digraph lineage {", "  rankdir=LR;", "  node [shape=box];"]
    for node in view.nodes:
        style = ", style=dashed" if node.drift else ""
        label = _quoted("\n".join(_words(node)))
        lines.append(f"  {_quoted(node.handle)} [label={label}{style}];")
    for parent, child, op in view.edges:
        lines.append(f"  {_quoted(parent)} -> {_quoted(child)} [label={_quoted(op)}];")
    if view.truncated:
        lines.append('  truncated [shape=plaintext, label="…"];')
    return "\n".join([*lines, "}", ""])


def mermaid(view: LineageView) -> str:
    """The graph as a Mermaid flowchart."""
    known = {node.handle: node for node in view.nodes}
    handles = [*known, *_strangers(view)]
    ids = {handle: f"n{index}" for index, handle in enumerate(handles)}
    lines = ["flowchart LR"]
    for handle, name in ids.items():
        words = _words(known[handle]) if handle in known else [handle]
        lines.append(f'  {name}["{"<br/>".join(map(_entities, words))}"]')
    for parent, child, op in view.edges:
        lines.append(f"  {ids[parent]} -->|{_entities(op)}| {ids[child]}")
    if view.truncated:
        lines.append('  truncated["…"]')
    return "\n".join([*lines, ""])


def prov(view: LineageView) -> dict[str, Any]:
    """The graph as PROV-JSON: versions are entities, what made them are activities.

    Source: the W3C member submission "The PROV-JSON Serialization" (2013).
    """
    document: dict[str, Any] = {"prefix": {"sv": _NAMESPACE}}

    def add(kind: str, key: str, fields: dict[str, Any]) -> None:
        document.setdefault(kind, {})[key] = fields

    for index, node in enumerate(view.nodes):
        entity, activity = _entity(node.handle), f"sv:made-{node.handle}"
        add("entity", entity, _facts(node))
        add("activity", activity, _deed(node))
        made = {"prov:entity": entity, "prov:activity": activity, "prov:time": _iso(node)}
        add("wasGeneratedBy", f"_:made{index}", made)
        if node.agent:
            agent = f"sv:agent-{_local(node.agent)}"
            add("agent", agent, {"prov:label": node.agent})
            link = {"prov:activity": activity, "prov:agent": agent}
            add("wasAssociatedWith", f"_:by{index}", link)
    for index, (parent, child, _) in enumerate(view.edges):
        derived = {"prov:generatedEntity": _entity(child), "prov:usedEntity": _entity(parent)}
        add("wasDerivedFrom", f"_:from{index}", derived)
        used = {"prov:activity": f"sv:made-{child}", "prov:entity": _entity(parent)}
        add("used", f"_:used{index}", used)
    for handle in _strangers(view):
        add("entity", _entity(handle), {"prov:type": "sv:version"})
    return document


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


def _entity(handle: str) -> str:
    return f"sv:{handle}"


def _local(text: str) -> str:
    """Any text as the local part of a qualified name."""
    return "".join(
        c if c.isascii() and (c.isalnum() or c in "_-") else f"%{ord(c):02X}" for c in text
    )


def _iso(node: VersionRecord) -> str:
    return (_EPOCH + timedelta(microseconds=node.created_at)).isoformat()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _entities(text: str) -> str:
    """Mermaid's own entities; a text may hold anything but markup."""
    return "".join(c if c.isalnum() or c in " @._-:,…/" else f"#{ord(c)};" for c in text)
