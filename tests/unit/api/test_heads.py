"""Heads of requests that arrive slowly or not at all, in both forms of the server."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from statevisor.api import connection
from statevisor.api.host import Host
from statevisor.api.settings import ServerSettings

HEAD_S = 0.2
HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /health HTTP/1.1\r\n" + HOST
POST = b"POST /v1/actors HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"


class Line:
    """A connection of one client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, *parts: bytes, every_s: float = 0.0) -> None:
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()
            await asyncio.sleep(every_s)

    async def answer(self) -> tuple[int, bytes]:
        """The status and the body of the next answer."""
        async with asyncio.timeout(5):
            head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
            return int(head.split(b" ")[1]), await self._reader.readexactly(length)

    async def refused(self) -> bytes:
        """The body of the refusal, behind which the connection ends."""
        status, body = await self.answer()
        assert status == 408, body
        async with asyncio.timeout(5):
            assert await self._reader.read() == b""
        return body


@pytest.fixture
def settings(settings: ServerSettings) -> ServerSettings:
    return replace(settings, head_wait_s=HEAD_S, body_wait_s=5.0)


@pytest.fixture
async def line(port: int) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    yield Line(reader, writer)
    writer.close()


@pytest.mark.parametrize("sent", [b"G", b"GET /health HTTP/1.1", GET, GET + b"Accept: */*\r\n"])
async def test_half_a_head_is_refused_with_a_next_step(line: Line, sent: bytes) -> None:
    await line.send(sent)
    body = await line.refused()
    assert b'"code":"request_timeout"' in body
    assert b"not complete within 0.2 s" in body
    assert b'"hint":"Send the request line' in body


async def test_a_head_that_drips_is_refused(line: Line) -> None:
    drip = asyncio.create_task(line.send(*(b"%c" % one for one in GET * 9), every_s=HEAD_S / 8))
    await line.refused()
    drip.cancel()


async def test_a_head_in_parts_is_served_and_leaves_no_clock_behind(line: Line) -> None:
    for _ in range(2):
        await line.send(GET[:9], GET[9:] + b"\r", b"\n", every_s=HEAD_S / 20)
        assert (await line.answer())[0] == 200
        await asyncio.sleep(2 * HEAD_S)


async def test_who_says_nothing_is_left_alone(line: Line) -> None:
    for _ in range(2):
        await asyncio.sleep(2 * HEAD_S)
        await line.send(GET + b"\r\n")
        assert (await line.answer())[0] == 200


async def test_an_empty_line_behind_a_body_is_no_head(line: Line) -> None:
    await line.send(POST + b"Content-Length: 2\r\n\r\n{}", b"\r\n", every_s=HEAD_S / 8)
    assert (await line.answer())[0] == 201
    await asyncio.sleep(2 * HEAD_S)
    await line.send(GET + b"\r\n")
    assert (await line.answer())[0] == 200


async def test_a_body_has_its_own_time(line: Line) -> None:
    parts = (b"{", b" ", b"}")
    await line.send(POST + b"Content-Length: 3\r\n\r\n", *parts, every_s=HEAD_S / 2)
    assert (await line.answer())[0] == 201


@pytest.mark.parametrize("length", [b"", b"Content-Length: 2\r\n"])
async def test_half_a_head_behind_a_request_is_refused(line: Line, length: bytes) -> None:
    whole = GET + b"\r\n" if not length else POST + length + b"\r\n{}"
    await line.send(whole)
    assert (await line.answer())[0] < 300
    await line.send(b"GET /")
    await line.refused()


async def test_a_stream_is_not_cut_by_half_a_head_behind_it(port: int, visor: Any) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    visor.script = lambda stream: None
    body = b'{"stream": true}'
    generate = b"POST /v1/actors/a/generate HTTP/1.1\r\n" + HOST
    writer.write(generate + b"Content-Type: application/json\r\nContent-Length: 16\r\n\r\n" + body)
    assert b"200 OK" in await reader.readline()
    writer.write(b"GET /")
    await asyncio.sleep(2 * HEAD_S)
    visor.streams[0].end(visor.turn)
    async with asyncio.timeout(5):
        rest = await reader.read()
    streamed, _, refusal = rest.partition(b"0\r\n\r\nHTTP/1.0 ")  # of an unknown version
    assert b"event: turn" in streamed
    assert refusal.startswith(b"408")
    writer.close()


async def test_a_late_head_is_counted_and_logged(host: Host, listening: Any) -> None:
    with capture_logs() as logs:
        async with listening(host) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await Line(reader, writer).send(b"G")
            await Line(reader, writer).refused()
            writer.close()
    (entry,) = [one for one in logs if one["event"] == "request"]
    assert (entry["status"], entry["route"], entry["log_level"]) == (408, "none", "info")


async def test_a_client_that_leaves_takes_its_clock_with_it(
    host: Host, listening: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with capture_logs() as logs:
        async with listening(host) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"G")
            await writer.drain()
            writer.close()
            await asyncio.sleep(2 * HEAD_S)
    assert [one for one in logs if one["event"] == "request"] == []
    assert caplog.records == []


async def test_without_the_clock_half_a_head_holds_its_connection(
    host: Host, listening: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(connection.Connection, "data_received")
    async with listening(host) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3 * HEAD_S):
                await reader.read()
        writer.close()
