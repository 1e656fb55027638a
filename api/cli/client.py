"""One server, spoken to with the standard library.

aiohttp would cost half a second of start-up; a command makes one or two requests.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from typing import Any, Protocol
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from statevisor.api.cli.faults import from_answer
from statevisor.hypervisor.errors import (
    AnswerUnreadable,
    InvalidRequest,
    ModelLoading,
    StatevisorError,
    Unavailable,
)

CONNECT_S = 5.0
_AGAIN_S = 0.25
_CHUNK = 1 << 20
_TOKEN = re.compile(r"[!-~]+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One server-sent event."""

    name: str
    data: Any
    id: str | None = None


class Source(Protocol):
    """What an upload reads from."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to so many bytes; none at the end."""
        ...


def fields(**values: Any) -> dict[str, Any]:
    """A body or query without the values that were left out."""
    return {name: value for name, value in values.items() if value is not None}


def path(*parts: str) -> str:
    """`/v1/…` with every part quoted; `@` stays readable. Raises: InvalidRequest (one is empty)."""
    if "" in parts:
        raise InvalidRequest("a name is empty", hint="Is a variable of the shell not set?")
    with _utf8():
        return "/v1/" + "/".join(quote(part, safe="@") for part in parts)


class Client:
    """Requests to one server. Raises: the error the server names; Unavailable if none answers."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 600.0,
        patience_s: float = 0.0,
    ) -> None:
        """patience_s: how long to ask again while the server's model loads."""
        parts = _parsed(url)
        self.port = parts.port  #: None: that of the scheme
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._parts = parts
        self._timeout_s = timeout_s  #: without one byte of answer
        self.patience_s = patience_s
        self._headers = {"Accept": "application/json", "User-Agent": "statevisor-cli"}
        if token:
            if not _TOKEN.match(token):
                raise InvalidRequest(
                    "an API key has visible ASCII characters only", hint="Look at STATEVISOR_TOKEN."
                )
            self._headers["Authorization"] = f"Bearer {token}"

    def get(self, route: str, query: Mapping[str, Any] | None = None) -> Any:
        """The JSON answer."""
        return self._call("GET", route, query=query)

    def post(
        self,
        route: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
    ) -> Any:
        """Send a JSON body, return the JSON answer."""
        return self._call("POST", route, body=body if body is not None else {}, query=query)

    def patch(self, route: str, body: Mapping[str, Any]) -> Any:
        """Send a JSON body, return the JSON answer."""
        return self._call("PATCH", route, body=body)

    def delete(self, route: str) -> None:
        """Delete; there is no answer."""
        self._call("DELETE", route)

    def text(self, route: str, query: Mapping[str, Any] | None = None) -> str:
        """An answer that is no JSON."""
        with self._exchange("GET", route, query=query) as answer:
            return self._body(answer).decode()

    def pages(self, route: str, query: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """Every item of a list, page after page."""
        asked = {"limit": 200, **(query or {})}
        while True:
            page = self.get(route, asked)
            yield from page["data"]
            if not page.get("has_more"):
                return
            asked["after"] = page["last_id"]

    def events(
        self, route: str, body: Mapping[str, Any] | None = None, *, method: str = "POST"
    ) -> Iterator[Event]:
        """Server-sent events until the server ends the stream; `error` events are raised."""
        headers = {"Accept": "text/event-stream"}
        with self._exchange(method, route, body=body, headers=headers) as answer, self._named():
            for event in _events(answer):
                if event.name == "error":
                    raise from_answer(500, event.data)
                yield event

    @contextmanager
    def download(
        self, route: str, query: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[int | None, Iterator[bytes]]]:
        """The length, where the server says it, and the bytes in chunks."""
        headers = {"Accept": "application/octet-stream, application/json"}
        with self._exchange("GET", route, query=query, headers=headers) as answer:
            yield answer.length, self._chunks(answer)

    def upload(
        self, route: str, file: Source, nbytes: int, query: Mapping[str, Any] | None = None
    ) -> Any:
        """Send the rest of a file as the raw body, return the JSON answer."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(nbytes)}
        with self._exchange("POST", route, raw=file, headers=headers, query=query) as answer:
            return _decoded(self._body(answer))

    def _call(self, method: str, route: str, **request: Any) -> Any:
        with self._exchange(method, route, **request) as answer:
            return _decoded(self._body(answer))

    @contextmanager
    def _exchange(
        self,
        method: str,
        route: str,
        *,
        body: Mapping[str, Any] | None = None,
        raw: Source | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[HTTPResponse]:
        """One request on a connection of its own."""
        sent = {**self._headers, **(headers or {})}
        payload: bytes | Source | None = raw
        if body is not None:
            payload = _encoded(body)
            sent["Content-Type"] = "application/json"
        target = self._parts.path.rstrip("/") + route + (f"?{_query(query)}" if query else "")
        until = time.monotonic() + (self.patience_s if raw is None else 0.0)
        while True:
            connection = self._connect()
            try:
                with self._named():
                    answer = _send(connection, method, target, payload, sent)
                    error = _refusal(answer)
                if error is None:
                    yield answer
                    return
            finally:
                connection.close()
            if not isinstance(error, ModelLoading) or time.monotonic() >= until:
                raise error
            time.sleep(_AGAIN_S)

    def _body(self, answer: HTTPResponse) -> bytes:
        with self._named():
            return answer.read()

    def _chunks(self, answer: HTTPResponse) -> Iterator[bytes]:
        """The body in pieces, none of them missing."""
        with self._named():
            while chunk := answer.read(_CHUNK):
                yield chunk
            if answer.length:  # http.client would end quietly
                raise IncompleteRead(b"", answer.length)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Turn what the network does into errors of ours."""
        try:
            yield
        except TimeoutError as error:
            raise Unavailable(f"{self.url} gave no answer for {self._timeout_s:g} s") from error
        except (ConnectionError, HTTPException) as error:
            raise Unavailable(
                f"{self.url} ended the connection before its answer was complete",
                hint="Was the server stopped? What it acknowledged is kept; ask again.",
            ) from error

    def _connect(self) -> HTTPConnection:
        kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
        connection = kind(self._parts.netloc.rpartition("@")[2], timeout=CONNECT_S)
        try:
            connection.connect()
        except (OSError, HTTPException, UnicodeError) as error:  # the last: no name of a host
            raise Unavailable(
                f"no server answers at {self.url}",
                hint="Start one with `statevisor serve`, or name another with --url.",
            ) from error
        connection.sock.settimeout(self._timeout_s)
        return connection


def _parsed(url: str) -> SplitResult:
    """The parts of a server's address. Raises: InvalidRequest."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # what is no port, no address
        whole = False
    if not whole or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidRequest(
            f"{url!r} is not the address of a server", hint="It reads like http://HOST:PORT."
        )
    return parts


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(body, allow_nan=False, ensure_ascii=False)
    except ValueError as error:
        raise InvalidRequest("a number must be finite", hint="Leave out nan and inf.") from error
    with _utf8():
        return text.encode()


def _query(query: Mapping[str, Any]) -> str:
    with _utf8():
        return urlencode({k: v for k, v in query.items() if v is not None}, doseq=True)


@contextmanager
def _utf8() -> Iterator[None]:
    """Text that is none: Python takes in what it cannot decode, and hands it on."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            "a text is not UTF-8", hint="Look at the encoding of the file or of the terminal."
        ) from error


def _send(
    connection: HTTPConnection,
    method: str,
    target: str,
    payload: bytes | Source | None,
    headers: Mapping[str, str],
) -> HTTPResponse:
    # A server that refuses a large body may answer and close before it has read everything.
    try:
        connection.request(method, target, body=payload, headers=headers)
    except (BrokenPipeError, ConnectionResetError):
        return connection.getresponse()
    return connection.getresponse()


def _refusal(answer: HTTPResponse) -> StatevisorError | None:
    return from_answer(answer.status, _decoded(answer.read())) if answer.status >= 400 else None


def _decoded(body: bytes) -> Any:
    if not body:
        return None
    try:
        return json.loads(body)
    except ValueError as error:
        raise AnswerUnreadable(f"the answer is not JSON: {body[:80]!r}") from error


def _events(answer: HTTPResponse) -> Iterator[Event]:
    """Parse an event stream: blocks of `event:`, `id:` and `data:` lines; `:` is a heartbeat."""
    name, ident, data = "message", None, list[str]()
    for line in answer:
        text = line.decode().rstrip("\r\n")
        if not text:
            if data:
                yield Event(name=name, data=_decoded("\n".join(data).encode()), id=ident)
            name, data = "message", []
            continue
        field, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "id":
            ident = value
        elif field == "data":
            data.append(value)
