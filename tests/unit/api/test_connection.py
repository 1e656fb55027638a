"""Bytes that are no request: over a raw socket, for the client libraries would not send them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from statevisor.api import connection
from statevisor.api.host import Host

HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /health HTTP/1.1\r\n" + HOST
POST = b"POST /v1/actors HTTP/1.1\r\n" + HOST

#: What no request is, and how it is refused.
REFUSED: dict[str, tuple[bytes, int, str]] = {
    "garbage": (b"\x00\x01garbage\r\n\r\n", 400, "invalid_request"),
    "no method": (b"G(T / HTTP/1.1\r\n\r\n", 400, "invalid_request"),
    "no version": (b"GET /health HTTP/x\r\n" + HOST + b"\r\n", 400, "invalid_request"),
    "no target": (b"GET HTTP/1.1\r\n" + HOST + b"\r\n", 400, "invalid_request"),
    "header without a name": (GET + b": x\r\n\r\n", 400, "invalid_request"),
    "header without a colon": (GET + b"Accept\r\n\r\n", 400, "invalid_request"),
    "header with NUL": (GET + b"Accept: a\x00b\r\n\r\n", 400, "invalid_request"),
    "length of letters": (POST + b"Content-Length: abc\r\n\r\n", 400, "invalid_request"),
    "length below zero": (POST + b"Content-Length: -1\r\n\r\n", 400, "invalid_request"),
    "two lengths": (
        POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        400,
        "invalid_request",
    ),
    "a length and chunks": (
        POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        400,
        "invalid_request",
    ),
    "a chunk without its size": (
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        400,
        "invalid_request",
    ),
    "an unknown transfer encoding": (
        POST + b"Transfer-Encoding: rot13\r\n\r\n{}",
        400,
        "invalid_request",
    ),
    "deflate that is none": (
        POST + b"Connection: close\r\nContent-Encoding: deflate\r\n"
        b"Content-Length: 9\r\n\r\nnot zlib!",
        415,
        "invalid_request",
    ),
    "an unknown expectation": (POST + b"Expect: tea\r\n\r\n", 400, "invalid_request"),
    "an unknown expectation, no route": (
        b"POST /none HTTP/1.1\r\n" + HOST + b"Expect: tea\r\n\r\n",
        400,
        "invalid_request",
    ),
    "a header of 100 kB": (GET + b"X: " + b"x" * 100_000 + b"\r\n\r\n", 431, "payload_too_large"),
    "a name of 100 kB": (GET + b"X" * 100_000 + b": x\r\n\r\n", 431, "payload_too_large"),
    "a target of 100 kB": (
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        431,
        "payload_too_large",
    ),
    "a thousand headers": (
        GET + b"".join(b"X%d: x\r\n" % n for n in range(1000)) + b"\r\n",
        400,
        "invalid_request",
    ),
}


@dataclass
class Answer:
    """One answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json"
        found: dict[str, Any] = json.loads(self.body)
        return found


async def one(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in head[1:] if line)}
    body = await reader.readexactly(int(headers["content-length"]))
    return Answer(int(head[0].split(" ")[1]), headers, body)


async def told(port: int, *parts: bytes) -> list[Answer]:
    """Send bytes, part by part with an answer in between, then read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    try:
        async with asyncio.timeout(5):
            for part in parts[:-1]:
                writer.write(part)
                found.append(await one(reader))
            writer.write(parts[-1])
            await writer.drain()
            while True:
                try:
                    found.append(await one(reader))
                except asyncio.IncompleteReadError as end:
                    return [*found, *([Answer(0, {}, end.partial)] if end.partial else [])]
    finally:
        writer.close()


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_no_request_is_a_problem(port: int, name: str) -> None:
    sent, status, code = REFUSED[name]
    (answer,) = await told(port, sent)
    assert (answer.status, answer.problem["code"]) == (status, code)
    assert answer.problem["status"] == status
    assert answer.problem["detail"]
    assert answer.problem["hint"]
    assert "\n" not in answer.problem["detail"]
    assert answer.problem["request_id"] == answer.headers["x-request-id"]
    assert answer.headers["server"] == "statevisor/0.0.0"
    assert answer.headers["connection"].lower() == "close"


async def test_a_request_before_a_bad_one_is_answered(port: int) -> None:
    first, second = await told(port, GET + b"\r\n", GET + b"Content-Length: abc\r\n\r\n")
    assert (first.status, second.status) == (200, 400)


async def test_a_large_refused_head_does_not_take_its_answer_back(port: int) -> None:
    (answer,) = await told(port, GET + b"X: " + b"x" * 5_000_000)
    assert answer.status == 431


async def test_an_answer_before_the_whole_body_ends_the_connection(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(POST + b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{}")
    answer = await one(reader)  # the body stops arriving
    assert (answer.status, answer.headers["connection"].lower()) == (400, "close")
    writer.write(b" " * 7)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()


async def test_a_body_that_is_refused_whole_does_not_end_the_connection(port: int) -> None:
    wrong = POST + b"Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}"
    first, second, last = await told(port, wrong, GET + b"\r\n", REFUSED["garbage"][0])
    assert (first.status, second.status, last.status) == (415, 200, 400)


async def test_who_is_refused_cannot_go_on(port: int) -> None:
    answers = await told(port, GET + b"Content-Length: abc\r\n\r\n" + GET + b"\r\n")
    assert [answer.status for answer in answers] == [400]


async def test_a_refused_request_is_counted_and_logged_without_a_traceback(
    host: Host, listening: Any
) -> None:
    with capture_logs() as logs:
        async with listening(host) as port:
            await told(port, REFUSED["length of letters"][0])
    (entry,) = [one for one in logs if one["event"] == "request"]
    assert (entry["status"], entry["route"], entry["log_level"]) == (400, "none", "info")
    page = host.meter.page({}).decode()
    assert 'http_requests_total{method="UNKNOWN",route="none",status="400"} 1.0' in page


async def test_a_packed_body_is_not_unpacked(
    host: Host, listening: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(host) as port:
        (answer,) = await told(port, REFUSED["deflate that is none"][0])
    assert answer.status == 415
    assert caplog.records == []  # aiohttp would log a traceback


async def test_what_fails_before_the_routes_tells_nothing(
    host: Host, listening: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise KeyError("/secret/path")

    monkeypatch.setattr(web.UrlDispatcher, "resolve", fails)
    with capture_logs() as logs:
        async with listening(host) as port:
            (answer,) = await told(port, GET + b"\r\n")
    assert (answer.status, answer.problem["code"]) == (500, "internal")
    assert b"secret" not in answer.body
    assert "unexpected" in [one["event"] for one in logs]


async def test_without_the_connection_the_answer_is_plain_text(
    host: Host, listening: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(connection.Connection, "handle_error")
    async with listening(host) as port:
        (answer,) = await told(port, REFUSED["length of letters"][0])
    assert answer.headers["content-type"].startswith("text/plain")
