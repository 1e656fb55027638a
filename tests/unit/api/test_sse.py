"""The stream itself, against sockets that misbehave."""

import asyncio
import socket

import pytest
from aiohttp import web

from statevisor.api.sse import CLIENT_GONE, EventStream, frame


def test_a_frame_is_two_lines_and_a_blank_one():
    assert frame("token", {"a": "x\ny"}) == b'event: token\ndata: {"a":"x\\ny"}\n\n'


class Watched:
    """A server with one handler that floods its client, and how that ended."""

    def __init__(self, aiohttp_server):
        self._serve = aiohttp_server
        self.sent = 0
        self.ended = asyncio.get_running_loop().create_future()

    async def start(self, write, **settings):
        async def handle(request):
            events = EventStream(request, headers={}, **settings)
            try:
                async with events:
                    await write(events)
            except BaseException as error:
                self.ended.set_result(type(error))
                raise
            self.ended.set_result(None)
            return events.response

        app = web.Application()
        app.router.add_get("/", handle)
        return await self._serve(app)

    async def flood(self, events):
        """Send far more than any buffer holds."""
        for _ in range(400):
            await events.send(b"x" * 65536)
            self.sent += 1


@pytest.fixture
async def watched(aiohttp_server):
    return Watched(aiohttp_server)


async def slow_client(port):
    """A socket with a tiny receive buffer that reads nothing."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, ("127.0.0.1", port))
    await loop.sock_sendall(raw, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return raw


async def test_a_slow_reader_makes_the_sender_wait_and_its_leaving_ends_that(watched):
    server = await watched.start(watched.flood, beat_s=0.01, stall_s=60)
    raw = await slow_client(server.port)
    seen = -1
    while watched.sent != seen or watched.sent == 0:  # until it stands still
        seen = watched.sent
        await asyncio.sleep(0.05)
    assert 0 < watched.sent < 400
    assert not watched.ended.done()
    raw.close()
    ended = await asyncio.wait_for(watched.ended, 5)
    assert issubclass(ended, (asyncio.CancelledError, *CLIENT_GONE))


async def test_a_reader_that_stands_still_is_cut_off(watched):
    server = await watched.start(watched.flood, beat_s=0.01, stall_s=0.1)
    raw = await slow_client(server.port)
    ended = await asyncio.wait_for(watched.ended, 5)
    assert issubclass(ended, (asyncio.CancelledError, *CLIENT_GONE))
    raw.close()


async def test_a_reader_that_keeps_up_gets_everything(watched, aiohttp_client):
    server = await watched.start(watched.flood, beat_s=0.01, stall_s=60)
    client = await aiohttp_client(server)
    body = await (await client.get("/")).read()
    assert body.count(b"x") == 400 * 65536
    assert await watched.ended is None


async def test_heartbeats_come_only_when_nothing_else_does(watched, aiohttp_client):
    async def write(events):
        for _ in range(40):
            await events.send(b"data: x\n\n")
            await asyncio.sleep(0.005)

    server = await watched.start(write, beat_s=0.03, stall_s=60)
    text = await (await (await aiohttp_client(server)).get("/")).text()
    assert text.startswith(": open\n\n")
    assert text.count("keep-alive") <= 2  # a loaded machine may be late once


async def test_a_stream_that_ends_leaves_no_task(watched, aiohttp_client):
    before = set()

    async def write(events):
        before.update(asyncio.all_tasks())

    server = await watched.start(write, beat_s=0.01, stall_s=60)
    await (await (await aiohttp_client(server)).get("/")).read()
    left = {task.get_coro().__name__ for task in asyncio.all_tasks()}
    assert "_beat" in {task.get_coro().__name__ for task in before}
    assert "_beat" not in left
