"""One request, read and checked as its route demands, and the answer that a handler gives.

A handler sees a `Call` and returns a `Reply`; it touches neither headers nor bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import PayloadEncodingError

from statevisor.api.codec import canonical, decode
from statevisor.api.host import Host
from statevisor.api.wire import Body, ChangeFields, Query, validate
from statevisor.hypervisor.catalog_port import Once
from statevisor.hypervisor.errors import (
    ActorNotFound,
    InvalidRequest,
    MalformedBody,
    PayloadTooLarge,
    StatevisorError,
    UnsupportedMedia,
    VersionNotFound,
)
from statevisor.hypervisor.vocab import NAME_PATTERN

if TYPE_CHECKING:
    from statevisor.hypervisor.visor import Visor

B = TypeVar("B")
Q = TypeVar("Q")
BodyT = TypeVar("BodyT", bound=Body)
QueryT = TypeVar("QueryT", bound=Query)

_NAME = re.compile(rf"{NAME_PATTERN}\Z")
_REF = re.compile(rf"{NAME_PATTERN}(@[0-9]{{1,18}})?\Z")
#: What cannot be a name is nobody's name.
_PATH_WORDS: Mapping[str, tuple[re.Pattern[str], type[StatevisorError]]] = {
    "a": (_NAME, ActorNotFound),
    "v": (_REF, VersionNotFound),
    "w": (_REF, VersionNotFound),
}
_ETAG = re.compile(r'"([0-9]{1,18})"\Z')
_KEY = re.compile(r"[!-~]{1,255}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[B, Q]):
    """One checked request."""

    request: web.Request
    host: Host
    body: B
    query: Q
    change: ChangeFields

    @property
    def visor(self) -> Visor:
        """The visor. Raises: ModelLoading."""
        return self.host.visor

    def path(self, name: str) -> str:
        """A part of the path. Raises: ActorNotFound, VersionNotFound."""
        value = self.request.match_info[name]
        if name in _PATH_WORDS:
            pattern, missing = _PATH_WORDS[name]
            if not pattern.match(value):
                raise missing(f"{value[:140]!r} is neither a name nor an id")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer: a value to be encoded as the client prefers, or bytes of a given kind."""

    value: object = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    media: str | None = None  #: of `raw`


async def read_raw(request: web.Request, limit: int, wait_s: float) -> bytes:
    """The whole body; every part of it must arrive within `wait_s` of the one before.

    Raises: PayloadTooLarge, MalformedBody, UnsupportedMedia (it is packed: what is left of a
    damaged one could be taken for another request).
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding != "identity":
        raise UnsupportedMedia(
            f"a body of Content-Encoding {encoding[:40]!r} is not read", hint="Send it unpacked."
        )
    if (request.content_length or 0) > limit:
        raise PayloadTooLarge(f"the body has {request.content_length} bytes, the limit is {limit}")
    parts: list[bytes] = []
    size = 0
    try:
        while True:
            async with asyncio.timeout(wait_s):
                part = await request.content.readany()
            if not part:
                return b"".join(parts)
            parts.append(part)
            size += len(part)
            if size > limit:
                raise PayloadTooLarge(f"the body is longer than the limit of {limit} bytes")
    except TimeoutError:
        raise MalformedBody(f"the body stopped arriving for {wait_s:g} s") from None
    except (
        web.PayloadAccessError,
        web.RequestPayloadError,
        PayloadEncodingError,
        OSError,
    ) as error:
        raise MalformedBody(f"the body broke off: {error}"[:300]) from None


def read_body(raw: bytes, content_type: str | None, model: type[BodyT]) -> BodyT:
    """A body as its model; no body at all is an empty object. Raises: InvalidRequest."""
    value = decode(raw, content_type) if raw else {}
    return validate(model, value, "body")


def read_query(request: web.Request, model: type[QueryT]) -> QueryT:
    """The query string as its model. Raises: InvalidRequest."""
    if len(set(request.query)) != len(request.query):
        raise InvalidRequest("a query parameter is given twice")
    return validate(model, dict(request.query), "query")


def read_change(request: web.Request, raw: bytes, content_type: str | None) -> ChangeFields:
    """If-Match and Idempotency-Key. Raises: InvalidRequest."""
    return {"if_generation": _generation(request), "once": _once(request, raw, content_type)}


def _generation(request: web.Request) -> int | None:
    text = request.headers.get("If-Match")
    if text is None or text.strip() == "*":
        return None
    match = _ETAG.match(text.strip())
    if match is None:
        raise InvalidRequest('If-Match must be one generation in quotes, like "17"')
    return int(match[1])


def _once(request: web.Request, raw: bytes, content_type: str | None) -> Once | None:
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not _KEY.match(key):
        raise InvalidRequest("Idempotency-Key must be 1 to 255 visible ASCII characters")
    digest = hashlib.sha256()
    for part in (request.method.encode(), request.path_qs.encode(), _meaning(raw, content_type)):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return Once(key=key, request=digest.hexdigest())


def _meaning(raw: bytes, content_type: str | None) -> bytes:
    """The body without its spelling: a client may order its keys anew when it tries again."""
    if not raw or content_type == "application/octet-stream":
        return raw
    return canonical(decode(raw, content_type))


def etag(generation: int) -> dict[str, str]:
    """The header that If-Match speaks of."""
    return {"ETag": f'"{generation}"'}
