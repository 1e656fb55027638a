"""The table of routes as an OpenAPI 3.1 document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NotRequired

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode
from typing_extensions import TypedDict

from statevisor.api.codec import JSON, MSGPACK
from statevisor.api.route import Route
from statevisor.api.wire import ListObject, Nothing

_REF = "#/components/schemas/"
_PATH_WORDS = {
    "a": "An actor's name or id.",
    "v": "A handle `name@seq`, or a tag.",
    "w": "A handle `name@seq`, or a tag.",
    "m": "A model's name.",
}
_TAGS = {
    "actors": "Named, durable sessions.",
    "turns": "Requests to an actor and their answers.",
    "versions": "Immutable positions of an actor's history.",
    "lineage": "Where versions come from.",
    "tiers": "Where states are kept.",
    "models": "Loaded models and their tokenizers.",
    "admin": "Care of the data folder.",
    "ops": "Health, readiness, metrics, drain.",
    "documents": "This description.",
}
_BYTES = {"type": "string", "format": "binary"}


class FieldFault(TypedDict):
    """What is wrong with one field."""

    field: str
    message: str


class Problem(TypedDict):
    """An error as RFC 9457 has it; `code` is stable."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str
    request_id: str
    errors: NotRequired[list[FieldFault]]


def document(routes: Iterable[Route], version: str) -> dict[str, Any]:
    """The whole description."""
    routes = tuple(routes)
    schemas = _Schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "statevisor",
            "version": version,
            "summary": "A hypervisor for the states of recurrent language models.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """JSON schemas of everything that the routes name."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        wanted: dict[tuple[str, JsonSchemaMode], TypeAdapter[Any]] = {}
        for route in routes:
            for part, kind in (("body", route.body), ("query", route.query)):
                if kind is not None:
                    wanted[f"{route.name}.{part}", "validation"] = TypeAdapter(kind)
            for part, shape in (
                ("answer", route.answer),
                ("items", route.items),
                ("told", route.told),
            ):
                if shape is not None:
                    wanted[f"{route.name}.{part}", "serialization"] = TypeAdapter(shape)
        wanted["problem", "serialization"] = TypeAdapter(Problem)
        made, shared = TypeAdapter.json_schemas(
            [(name, mode, adapter) for (name, mode), adapter in wanted.items()],
            ref_template=_REF + "{model}",
        )
        self._made: dict[str, Any] = {name: schema for (name, _), schema in made.items()}
        self._shared: dict[str, Any] = dict(shared["$defs"])
        queries = {f"{r.query.__name__}" for r in routes}
        #: Query models become parameters; as schemas nobody refers to them.
        self.components = {k: v for k, v in self._shared.items() if k not in queries}

    def of(self, name: str) -> Any:
        """The schema of "operation.part"."""
        return self._made[name]

    def properties(self, name: str) -> tuple[Mapping[str, Any], frozenset[str]]:
        """The fields of an object schema and which of them are required."""
        schema = self._made[name]
        schema = self._shared[schema["$ref"].removeprefix(_REF)] if "$ref" in schema else schema
        return schema.get("properties", {}), frozenset(schema.get("required", ()))


def _operation(route: Route, schemas: _Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [*_path(route), *_query(route, schemas), *_headers(route)],
        "responses": {**_answers(route, schemas), "default": _PROBLEM},
    }
    if route.body is None:
        content = {"application/octet-stream": {"schema": _BYTES}}
        operation["requestBody"] = {"required": True, "content": content}
    elif route.body is not Nothing:
        schema = schemas.of(f"{route.name}.body")
        required = bool(schemas.properties(f"{route.name}.body")[1])
        operation["requestBody"] = {"required": required, "content": _both(schema)}
    if route.scope != "public":
        operation["security"] = [{"token": [route.scope]}, {}]
    return operation


def _path(route: Route) -> list[dict[str, Any]]:
    return [
        {
            "name": word,
            "in": "path",
            "required": True,
            "description": _PATH_WORDS[word],
            "schema": {"type": "string"},
        }
        for word in re.findall(r"{(\w+)}", route.path)
    ]


def _query(route: Route, schemas: _Schemas) -> list[dict[str, Any]]:
    fields, required = schemas.properties(f"{route.name}.query")
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _given(schema)}
        for name, schema in fields.items()
    ]


def _given(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a parameter where it is given: text is never null."""
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "title")}
    kinds = [kind for kind in schema.get("anyOf", ()) if kind.get("type") != "null"]
    if rest.get("default", 0) is None:
        del rest["default"]
    return {**rest, **(kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {})}


def _headers(route: Route) -> list[dict[str, Any]]:
    if not (route.changes or route.keeps):
        return []
    match = {
        "name": "If-Match",
        "in": "header",
        "description": 'Do it only if the actor still has this generation: `"17"`.',
        "schema": {"type": "string"},
    }
    once = {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "A retry with the same key and request gets the first answer again.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    }
    return [*([match] if route.changes else []), *([once] if route.method == "POST" else [])]


def _answers(route: Route, schemas: _Schemas) -> dict[str, Any]:
    """Answers by status; a dry run may share its status with the real thing."""
    done = _answer(route, schemas)
    if route.told is None:
        return {str(route.status): done}
    told = schemas.of(f"{route.name}.told")
    if route.status == 200:
        either = [schemas.of(f"{route.name}.answer"), told]
        return {"200": {**done, "content": _both({"anyOf": either})}}
    dry = {"description": "What it would cost, to `dry_run`.", "content": _both(told)}
    return {"200": dry, str(route.status): done}


def _answer(route: Route, schemas: _Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.items is not None:
        content.update(_both(_list_of(schemas, route)))
    elif route.answer is not None:
        content.update(_both(schemas.of(f"{route.name}.answer")))
    for media in route.media:
        binary = media == "application/octet-stream"
        content[media] = {"schema": _BYTES if binary else {"type": "string"}}
    answer: dict[str, Any] = {"description": route.summary}
    return {**answer, "content": content} if content else answer


def _list_of(schemas: _Schemas, route: Route) -> dict[str, Any]:
    page = schemas.components[ListObject.__name__]
    items = {"type": "array", "items": schemas.of(f"{route.name}.items")}
    return {"allOf": [{"$ref": _REF + ListObject.__name__}], "properties": {"data": items}} | {
        "type": page["type"]
    }


def _both(schema: Any) -> dict[str, Any]:
    return {JSON: {"schema": schema}, MSGPACK: {"schema": schema}}


_PROBLEM = {
    "description": "What went wrong, with a stable code.",
    "content": {"application/problem+json": {"schema": {"$ref": f"{_REF}Problem"}}},
}
