"""Bytes to plain values and back: JSON and msgpack by content negotiation.

A decoded value is a tree of None, bool, int, finite float, str, list and dict with text keys, no
deeper than `MAX_DEPTH`, and no object in it names a key twice. Everything else is MalformedBody.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, cast

import msgpack
import orjson

from statevisor.hypervisor.errors import MalformedBody, UnsupportedMedia

JSON = "application/json"
MSGPACK = "application/msgpack"
MAX_DEPTH = 32

_NESTS = frozenset({list, dict})
_SCALARS = _NESTS | {type(None), bool, int, float, str}
_MSGPACK_TYPES = frozenset({MSGPACK, "application/x-msgpack", "application/vnd.msgpack"})
#: curl sends this one when it is told nothing.
_CURL_DEFAULT = "application/x-www-form-urlencoded"


def decode(body: bytes, content_type: str | None) -> Any:
    """The value of a body; an absent Content-Type means JSON.

    Raises: MalformedBody, UnsupportedMedia.
    """
    kind = (content_type or JSON).partition(";")[0].strip().lower()
    if kind in _MSGPACK_TYPES:
        value = _decode_msgpack(body)
    elif kind in (JSON, _CURL_DEFAULT) or kind.endswith("+json"):
        value = _decode_json(body)
    else:
        raise UnsupportedMedia(f"this server does not read {kind[:100]!r}")
    _check(value)
    return value


def encode(value: object, media: str) -> bytes:
    """A value as JSON or MSGPACK."""
    if media == MSGPACK:
        packed = msgpack.packb(value, default=_plain)
        assert isinstance(packed, bytes)
        return packed
    return orjson.dumps(value, default=_plain)


def canonical(value: object) -> bytes:
    """The same bytes for the same value, however its body was spelled."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def answer_type(accept: str | None) -> str:
    """MSGPACK if the client prefers it to JSON, else JSON."""
    weights = {JSON: 0.0, MSGPACK: 0.0}
    for part in (accept or "").split(","):
        name, *params = (piece.strip().lower() for piece in part.split(";"))
        weight = _weight(params)
        if name in _MSGPACK_TYPES:
            weights[MSGPACK] = max(weights[MSGPACK], weight)
        elif name in (JSON, "application/*", "*/*"):
            weights[JSON] = max(weights[JSON], weight)
    return MSGPACK if weights[MSGPACK] > 0 and weights[MSGPACK] >= weights[JSON] else JSON


def _weight(params: list[str]) -> float:
    for param in params:
        if param.startswith("q="):
            try:
                return float(param[2:])
            except ValueError:
                return 0.0
    return 1.0


def _decode_json(body: bytes) -> Any:
    # orjson is strict (UTF-8, surrogates, numbers) but takes the last of two equal keys; the
    # standard library tells of every pair.
    try:
        value = orjson.loads(body)
        json.loads(body, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise MalformedBody(f"the body is not JSON: {error}"[:300]) from None
    return value


def _decode_msgpack(body: bytes) -> Any:
    try:
        return msgpack.unpackb(
            body, raw=False, strict_map_key=True, object_pairs_hook=_unique, ext_hook=_no_ext
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise MalformedBody(f"the body is not msgpack: {error}"[:300]) from None


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object names a key twice")
    return found


def _no_ext(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code}")


def _check(value: Any) -> None:
    """Walk the tree level by level, so that no depth can exhaust the stack."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        kinds = set(map(type, level))  # a long list of token ids is settled by this alone
        for kind in kinds - _SCALARS:
            raise MalformedBody(f"{kind.__name__} is no type of JSON")
        if float in kinds and not all(math.isfinite(n) for n in level if type(n) is float):
            raise MalformedBody("a number must be finite")
        if not kinds & _NESTS:
            return
        level = list(chain.from_iterable(map(_inside, (n for n in level if type(n) in _NESTS))))
    raise MalformedBody(f"the body is nested deeper than {MAX_DEPTH}")


def _inside(node: Any) -> Iterable[Any]:
    if type(node) is list:
        return node
    if not all(type(key) is str for key in node):
        raise MalformedBody("the key of an object must be text")
    return cast("Iterable[Any]", node.values())


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return list(value)
    raise TypeError(f"{type(value).__name__} does not cross the wire")
