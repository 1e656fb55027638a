"""The OpenAPI document as one page that needs nothing but a browser: no script, no other host."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from statevisor.hypervisor.errors import StatevisorError

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif;
  --line: color-mix(in srgb, currentColor 25%, transparent);
  --shade: color-mix(in srgb, currentColor 7%, transparent) }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line) }
code, pre { font: 0.9em/1.4 ui-monospace, monospace }
pre { padding: 0.75rem; overflow-x: auto; background: var(--shade) }
summary { cursor: pointer; padding: 0.3rem 0 }
summary b { display: inline-block; min-width: 4.5rem }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: 0.25rem 0.75rem 0.25rem 0 }
"""


def render(document: Mapping[str, Any]) -> str:
    """The page."""
    info = document["info"]
    body = "".join(
        [
            f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
            f"<p>{escape(info['summary'])} The same as a document for programs: ",
            '<a href="/openapi.json">/openapi.json</a>. Bodies and answers are JSON, or msgpack ',
            "by Content-Type and Accept.</p>",
            *(_tag(document, tag) for tag in document["tags"]),
            _codes(),
            "<h2>Schemas</h2>",
            *(_schema(name, s) for name, s in sorted(document["components"]["schemas"].items())),
        ]
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])}: HTTP</title><style>{_STYLE}</style></head>"
        f"<body>{body}</body></html>"
    )


def _tag(document: Mapping[str, Any], tag: Mapping[str, str]) -> str:
    operations = [
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if tag["name"] in operation["tags"]
    ]
    return f"<h2>{escape(tag['name'])}</h2><p>{escape(tag['description'])}</p>{''.join(operations)}"


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(p['name'])}</code></td><td>{p['in']}</td>"
        f"<td>{escape(_type(p['schema']))}</td><td>{escape(p.get('description', ''))}</td></tr>"
        for p in operation["parameters"]
    )
    table = f"<table>{rows}</table>" if rows else ""
    body = operation.get("requestBody", {}).get("content", {})
    answers = "".join(
        f"<tr><td>{status}</td><td>{_contents(answer.get('content', {}))}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    takes = f"<p>Body: {_contents(body)}</p>" if body else ""
    return (
        f'<details id="{escape(operation["operationId"])}"><summary><b>{method.upper()}</b> '
        f"<code>{escape(path)}</code> {escape(operation['summary'])}</summary>"
        f"{table}{takes}<table>{answers}</table></details>"
    )


def _contents(content: Mapping[str, Any]) -> str:
    return ", ".join(f"{escape(m)} {_link(c['schema'])}" for m, c in content.items()) or "empty"


def _link(schema: Mapping[str, Any]) -> str:
    name = _type(schema)
    known = any("$ref" in part for part in (schema, *schema.get("anyOf", ())))
    target = name.partition(" ")[0]
    return f'<a href="#schema-{escape(target)}">{escape(name)}</a>' if known else escape(name)


def _type(schema: Mapping[str, Any]) -> str:
    """A schema in a word or two."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "data" in schema.get("properties", {}):
        return f"list of {_type(schema['properties']['data']['items'])}"
    return str(schema.get("format") or schema.get("type") or "any")


def _codes() -> str:
    rows = "".join(
        f'<tr id="code-{escape(kind.code)}"><td><code>{escape(kind.code)}</code></td>'
        f"<td>{escape((kind.__doc__ or '').strip())} {escape(kind.hint)}</td></tr>"
        for kind in _kinds()
    )
    return f"<h2>Error codes</h2><table>{rows}</table>"


def _kinds() -> Iterator[type[StatevisorError]]:
    """One class per code: the first that has it."""
    seen: set[str] = set()
    kinds = [StatevisorError]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
        if kind.code not in seen:
            seen.add(kind.code)
            yield kind


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    text = escape(json.dumps(schema, indent=2))
    return (
        f'<details id="schema-{escape(name)}"><summary><code>{escape(name)}</code> '
        f"{escape(schema.get('description', ''))}</summary><pre>{text}</pre></details>"
    )
