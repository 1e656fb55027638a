"""Where clients arrive, and that none is left hanging when no more are taken."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest

from statevisor.api.front import serve_app
from statevisor.api.host import Host
from statevisor.api.settings import ServerSettings


@pytest.fixture
def settings() -> ServerSettings:
    """All the time in the world for whoever is slow."""
    return ServerSettings(head_wait_s=60.0, body_wait_s=60.0, drain_s=60.0)


@pytest.mark.parametrize("turns", range(6))
async def test_who_arrives_as_it_closes_is_closed(host: Host, turns: int) -> None:
    """However far the loop has come with a connection: not accepted, accepted, known."""
    door = socket.create_server(("127.0.0.1", 0))
    door.setblocking(False)
    serving = await serve_app(host, [door])
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
    with socket.create_connection(door.getsockname()) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await serving.cleanup()
        for _ in range(2):  # a transport says goodbye in a turn of its own
            await asyncio.sleep(0)
        client.settimeout(1)
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
    assert failures == []


HEAD = b"Host: 127.0.0.1\r\nContent-Type: application/json\r\n"


async def test_it_may_be_closed_twice(host: Host) -> None:
    door = socket.create_server(("127.0.0.1", 0))
    door.setblocking(False)
    serving = await serve_app(host, [door])
    for _ in range(2):
        await serving.cleanup()


@pytest.mark.parametrize("sent", [b"", b"{", b"{}"])
async def test_half_a_body_does_not_hold_up_the_end(
    host: Host, listening: Any, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(10):
        async with listening(host) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /v1/actors HTTP/1.1\r\n" + HEAD)
            writer.write(b"Content-Length: 2\r\n\r\n" + sent)
            await asyncio.sleep(0.1)
        answer = await reader.read()
    writer.close()
    if sent == b"{}":  # the control: it has arrived, and is answered
        assert answer.startswith(b"HTTP/1.1 201 ")
    else:
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b'"code":"draining"' in answer
    assert caplog.records == []


async def test_nor_does_who_was_refused_in_the_middle_of_one(
    host: Host, listening: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(5):
        async with listening(host) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /v1/actors HTTP/1.1\r\n" + HEAD)
            writer.write(b"Content-Length: 999999999\r\n\r\n{")
            assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
            await asyncio.sleep(0.05)
        await reader.read()
    writer.close()
    assert caplog.records == []


async def test_a_request_that_has_arrived_runs_to_its_end(
    host: Host, listening: Any, visor: Any
) -> None:
    visor.script = lambda stream: None
    async with asyncio.timeout(10):
        async with listening(host) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /v1/actors/a/generate HTTP/1.1\r\n" + HEAD)
            writer.write(b"Content-Length: 2\r\n\r\n{}")
            while not visor.streams:  # noqa: ASYNC110 - the server's state
                await asyncio.sleep(0.01)
            asyncio.get_running_loop().call_later(0.1, visor.streams[0].end, visor.turn)
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
