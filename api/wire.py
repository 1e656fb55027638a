"""The common form of what crosses the wire: field types, lists, times, validation.

The modules `wire_*` hold one noun each: pydantic models that become commands, and views that become
the objects of the HTTP surface. What passes here is checked nowhere below for its form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from typing_extensions import TypedDict

from statevisor.hypervisor.catalog_port import Once
from statevisor.hypervisor.errors import InvalidRequest
from statevisor.hypervisor.vocab import MAX_SEED, NAME_PATTERN

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Problems of one request that are spelled out.
_SHOWN = 20
#: What pydantic puts before the messages of our own checks.
_OWN = "Value error, "
#: How pydantic calls the members of a union.
_KINDS = ("constrained-", "list[constrained-", "function-")


class Body(BaseModel):
    """A request body: no unknown field, no bool as int, no float as int, no NaN."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True
    )


class Query(BaseModel):
    """A query string: every value arrives as text."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class Nothing(Body):
    """An empty body."""


class NoQuery(Query):
    """No query parameters."""


_NAME = f"^{NAME_PATTERN}$"
_REF = rf"^{NAME_PATTERN}(@[0-9]{{1,18}})?$"
_KEY = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$"
_MODEL = r"^[^\x00-\x1f]{1,256}$"
_TEXT = r"^[^\x00]*$"
_LABEL = r"^[^\x00=]+(=[^\x00]*)?$"
_DIGEST = r"^blake3:[0-9a-f]{64}$"
_PATH = r"^/[^\x00]{1,4000}$"
_WORD = "is 1 to 128 of A-Z a-z 0-9 . _ - and begins with a letter or a digit"
#: What the patterns of common fields mean.
_PATTERNS: Mapping[str, str] = {
    _NAME: f"a name {_WORD}, not with act_",
    _REF: f"a version is a handle like alice@3, or a tag; a tag {_WORD}",
    _KEY: "the key of a label is 1 to 128 of A-Z a-z 0-9 . _ / - and begins with a letter or digit",
    _MODEL: "a model's name has 1 to 256 characters, none of them a control character",
    _TEXT: "it must not contain NUL",
    _LABEL: "a label reads key, or key=value",
    _DIGEST: "a digest reads blake3: and 64 hexadecimal digits",
    _PATH: "a path on the server is absolute: it begins with /",
}

Name = Annotated[str, StringConstraints(pattern=_NAME)]
#: A handle `name@seq`, or a tag.
Ref = Annotated[str, StringConstraints(pattern=_REF)]
Position = Annotated[int, Field(ge=0, lt=2**53)]
#: A place in a history.
Place = Ref | Position
Seed = Annotated[int, Field(ge=0, lt=MAX_SEED)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
#: The first bad id ends the check, so that a long list costs no long answer.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
ModelName = Annotated[str, StringConstraints(pattern=_MODEL)]
#: Text that a database keeps: some refuse NUL.
Note = Annotated[str, StringConstraints(max_length=2000, pattern=_TEXT)]
LabelKey = Annotated[str, StringConstraints(pattern=_KEY)]
LabelValue = Annotated[str, StringConstraints(max_length=256, pattern=_TEXT)]
#: A path of the server's machine.
ServerPath = Annotated[str, StringConstraints(pattern=_PATH)]
#: A part of a text.
Part = Annotated[str, StringConstraints(max_length=128, pattern=_TEXT)]
#: What a list is filtered by: `key` or `key=value`.
LabelFilter = Annotated[
    str,
    StringConstraints(max_length=400, pattern=_LABEL),
    Field(description="`key` or `key=value`"),
]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=64)]
Limit = Annotated[int, Field(ge=1, le=200)]


class ChangeFields(TypedDict):
    """What every changing command takes from the headers."""

    if_generation: int | None
    once: Once | None


class ListObject(TypedDict):
    """One page of a list."""

    object: Literal["list"]
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool


def listing(data: Sequence[Mapping[str, Any]], key: str, has_more: bool = False) -> ListObject:
    """A page of objects; `key` is the field that `after` speaks of."""
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0][key] if data else None,
        "last_id": data[-1][key] if data else None,
        "has_more": has_more,
    }


def timestamp(us: int) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC."""
    minute, rest = divmod(us, 60_000_000)
    text = f"{rest:08}"
    return f"{_minute(minute)}{text[:2]}.{text[2:]}Z"


@lru_cache(maxsize=4096)
def _minute(count: int) -> str:
    """The part of a time that nearly all times of a list share: "2026-01-02T03:04:"."""
    return (_EPOCH + timedelta(minutes=count)).isoformat()[:17]


M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], value: object, where: str) -> M:
    """The value as a model. Raises: InvalidRequest that names every field at fault."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise refused(error, where) from None


def refused(error: ValidationError, where: str) -> InvalidRequest:
    """The error that tells which fields are wrong and why, without repeating their values."""
    found = error.errors(include_url=False, include_input=False)
    messages: dict[str, list[str]] = {}
    for one in found[:_SHOWN]:
        messages.setdefault(_field(where, one["loc"]), []).append(_message(one))
    # a field that may be one thing or another has a message for each
    fields = tuple((field, ", or: ".join(each)) for field, each in messages.items())
    text = "; ".join(f"{field}: {message}" for field, message in fields)
    more = len(found) - _SHOWN
    return InvalidRequest(text + (f"; and {more} more" if more > 0 else ""), fields=fields)


def _field(where: str, loc: Sequence[int | str]) -> str:
    """The path of a field; the library's names for what it may be are left out."""
    parts = (part for part in map(str, loc) if not part.startswith(_KINDS))
    return ".".join([where, *parts])


def _message(one: Mapping[str, Any]) -> str:
    """What is wrong in words that speak of the request, where the library speaks of its types."""
    kind = one["type"]
    if kind == "string_pattern_mismatch":
        pattern = one["ctx"]["pattern"]
        return _PATTERNS.get(pattern, f"it should match the pattern {pattern}")
    if kind == "extra_forbidden":
        return "there is no such field"
    if kind in ("model_type", "dict_type"):
        return "it should be an object"
    if kind.startswith(("datetime_", "timezone_")):
        return "a time reads like 2026-01-02T03:04:05Z"
    message: str = one["msg"].removeprefix(_OWN)
    return message
