"""What crosses the socket between a worker and the engine: one length, one msgpack value.

Beside msgpack's own values these travel as what they are: tuples, enumerations, and the frozen
dataclasses and errors of the core. Nothing else is built from bytes.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from inspect import iscoroutinefunction
from itertools import islice
from typing import Any, get_args, get_type_hints

import msgpack

from statevisor.hypervisor.commands import TokenEvent, TurnView
from statevisor.hypervisor.errors import StatevisorError
from statevisor.hypervisor.visor import Visor

_TUPLE, _ENUM, _RECORD, _ERROR = range(1, 5)
_LENGTH = struct.Struct(">Q")
#: More than an import may have, and its envelope.
_LIMIT = 1 << 32


#: What a worker may call of a visor; the life of the process is the engine's own.
METHODS = frozenset(
    name for name, method in vars(Visor).items() if iscoroutinefunction(method) and name[0] != "_"
) - {"start", "failed", "drain", "close", "generate"}


def _values() -> dict[str, type]:
    """The records and enumerations that the visor's signatures lead to, by name."""
    found: dict[str, type] = {}
    methods = [getattr(Visor, name) for name in (*METHODS, "generate", "walk", "drain")]
    left: list[Any] = [TokenEvent, TurnView]
    left += [hint for method in methods for hint in get_type_hints(method).values()]
    while left:
        kind = left.pop()
        left += get_args(kind)
        if not isinstance(kind, type) or not (is_dataclass(kind) or issubclass(kind, Enum)):
            continue
        if kind.__name__ not in found:
            found[kind.__name__] = kind
            left += get_type_hints(kind).values() if is_dataclass(kind) else ()
        elif found[kind.__name__] is not kind:
            raise TypeError(f"two kinds of value are called {kind.__name__}")
    return found


def _errors(kind: type[StatevisorError] = StatevisorError) -> Iterator[type[StatevisorError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _errors(inner)


_VALUES: Mapping[str, type] = _values()
#: Fields of the records. Measured: to look a record over each time took four fifths of a frame.
_FIELDS: Mapping[type, tuple[str, ...]] = {
    kind: tuple(field.name for field in fields(kind))
    for kind in _VALUES.values()
    if is_dataclass(kind)
}
_ERRORS: Mapping[str, type[StatevisorError]] = {kind.__name__: kind for kind in _errors()}


#: That wait to be used again; a value within a value takes another.
_packers: list[msgpack.Packer] = []
#: A packer keeps as much memory as the longest value took: with more bytes it is not used again.
_KEPT = 1 << 20


def encode(value: object) -> bytes:
    """One value. Raises: TypeError (it is none that may travel)."""
    packer = _packers.pop() if _packers else msgpack.Packer(default=_wrap, strict_types=True)
    packed: bytes = packer.pack(value)
    if len(packed) < _KEPT:
        _packers.append(packer)
    return packed


def decode(data: bytes) -> Any:
    """The value again. Raises: ValueError."""
    return msgpack.unpackb(data, ext_hook=_unwrap, strict_map_key=False)


async def read(reader: asyncio.StreamReader) -> Any:
    """The next value. Raises: EOFError, ValueError (the other side speaks something else)."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > _LIMIT:
            raise ValueError(f"a frame of {length} bytes")
        return decode(await reader.readexactly(length))
    except asyncio.IncompleteReadError as error:
        raise EOFError from error


def framed(value: object) -> bytes:
    """One value as `read` takes it."""
    data = encode(value)
    return _LENGTH.pack(len(data)) + data


def columns(released: Sequence[tuple[int, Sequence[TokenEvent]]]) -> tuple[list[Any], ...]:
    """What one step released by field: one by one tokens would cost the engine 60 times as much.

    released: numbers of turns, each with tokens that follow each other.
    """
    events = [event for _, part in released for event in part]
    return (
        [number for number, _ in released],
        [len(part) for _, part in released],
        [part[0].index for _, part in released],
        [part[0].position for _, part in released],
        [event.token for event in events],
        [event.text for event in events],
        [event.logprobs for event in events],
    )


def rows(columns: Sequence[list[Any]]) -> Iterator[tuple[int, list[TokenEvent]]]:
    """What was released again."""
    *of_turns, tokens, texts, logprobs = columns
    fields = zip(tokens, texts, logprobs, strict=True)
    for number, count, index, position in zip(*of_turns, strict=True):
        part = islice(fields, count)
        yield number, [TokenEvent(index + at, position + at, *rest) for at, rest in enumerate(part)]


def _wrap(value: object) -> object:
    names = _FIELDS.get(type(value))
    if names is not None:
        parts = [getattr(value, name) for name in names]
        return msgpack.ExtType(_RECORD, encode([type(value).__name__, parts]))
    if isinstance(value, Enum):
        if isinstance(value, str) and type(value).__name__ not in _VALUES:
            return value.value  # a signature that asks for text gets text
        return msgpack.ExtType(_ENUM, encode([_known(value), value.value]))
    if isinstance(value, tuple):
        return msgpack.ExtType(_TUPLE, encode(list(value)))
    if isinstance(value, StatevisorError):
        facts = {**vars(value), "hint": value.hint}
        return msgpack.ExtType(_ERROR, encode([type(value).__name__, facts]))
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value)} does not cross the socket")


def _known(value: object) -> str:
    name = type(value).__name__
    if _VALUES.get(name) is not type(value):
        raise TypeError(f"{type(value)} does not cross the socket")
    return name


def _unwrap(code: int, data: bytes) -> object:
    content = decode(data)
    if code == _TUPLE:
        return tuple(content)
    name, rest = content
    if code == _ENUM:
        return _VALUES[name](rest)
    if code == _RECORD:
        kind = _VALUES[name]
        return kind(**dict(zip(_FIELDS[kind], rest, strict=True)))
    if code == _ERROR:
        error = _ERRORS[name](rest["detail"], hint=rest["hint"])
        vars(error).update(rest)
        return error
    raise ValueError(f"a value of kind {code}")
