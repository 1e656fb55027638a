"""A scripted server on a loopback port, and the command line pointed at it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from aiohttp import web

from statevisor.api.cli.main import main


class Asked(NamedTuple):
    """One request as the server saw it."""

    method: str
    path: str
    query: dict[str, Any]
    body: Any
    headers: dict[str, str]


@dataclass
class FakeServer:
    """Answers what it was told to, in the order it was told, and remembers what it was asked."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    _answers: dict[tuple[str, str], list[Callable[[web.Request], Any]]] = field(
        default_factory=dict
    )

    def answer(
        self, method: str, path: str, body: Any = None, *, status: int = 200, raw: bytes = b""
    ) -> None:
        """Answer JSON (or raw bytes); the last answer of a path stays."""

        async def give(request: web.Request) -> web.Response:
            if body is None:
                return web.Response(status=status, body=raw)
            return web.json_response(body, status=status)

        self._answers.setdefault((method, path), []).append(give)

    def refuse(self, method: str, path: str, status: int, code: str, **more: Any) -> None:
        """Answer problem+json."""
        self.answer(
            method,
            path,
            {"status": status, "code": code, "detail": "so it is", **more},
            status=status,
        )

    def stream(self, path: str, *blocks: str) -> None:
        """Answer an event stream of these blocks."""

        async def give(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for block in blocks:
                await response.write(block.encode())
            await response.write_eof()
            return response

        self._answers.setdefault(("POST", path), []).append(give)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Whatever comes."""
        data = await request.read()
        try:
            body = json.loads(data) if data else None
        except ValueError:
            body = data
        query = {key: request.query.getall(key) for key in request.query}
        flat = {key: values[0] if len(values) == 1 else values for key, values in query.items()}
        self.asked.append(Asked(request.method, request.path, flat, body, dict(request.headers)))
        answers = self._answers.get((request.method, request.path))
        if not answers:
            return web.json_response(
                {"code": "not_found", "detail": f"no answer for {request.method} {request.path}"},
                status=404,
            )
        give = answers.pop(0) if len(answers) > 1 else answers[0]
        result: web.StreamResponse = await give(request)
        return result


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A server in a thread with its own event loop: the client under test blocks."""
    fake = FakeServer()
    up, down = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", fake.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        loops.append(asyncio.get_running_loop())
        up.set()
        await down.wait()
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert up.wait(10)
    yield fake
    loops[0].call_soon_threadsafe(down.set)
    thread.join()


class Ran(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


Cli = Callable[..., Ran]


@pytest.fixture
def cli(
    server: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Cli:
    """Run one command against the fake server."""
    monkeypatch.setenv("STATEVISOR_URL", server.url)
    monkeypatch.delenv("STATEVISOR_TOKEN", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*words: str) -> Ran:
        code = main(words)
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


def make_actor(name: str = "alice", **changed: Any) -> dict[str, Any]:
    """An actor object."""
    return {
        "object": "actor",
        "id": "act_1",
        "name": name,
        "model": "demo",
        "status": "idle",
        "tier": "gpu",
        "position": 7,
        "durable_position": 7,
        "generation": 3,
        "head": f"{name}@2",
        "parent": None,
        "seed": 5,
        "pinned": False,
        "labels": {},
        "created_at": "2026-01-01T00:00:00.000000Z",
        "updated_at": "2026-01-01T00:00:00.000000Z",
        **changed,
    }


def make_version(handle: str = "alice@2", **changed: Any) -> dict[str, Any]:
    """A version object."""
    actor, _, seq = handle.partition("@")
    return {
        "object": "version",
        "handle": handle,
        "actor": actor,
        "seq": int(seq),
        "position": 7,
        "op": "turn",
        "parents": [],
        "digest": "blake3:" + "ab" * 32,
        "bytes": 2048,
        "rule": None,
        "params": {},
        "drift": False,
        "tags": [],
        "labels": {},
        "created_at": "2026-01-01T00:00:00.000000Z",
        **changed,
    }


def make_turn(text: str = "Finn.", **changed: Any) -> dict[str, Any]:
    """A turn object."""
    return {
        "object": "turn",
        "id": "turn_1",
        "actor": "alice",
        "text": text,
        "token_ids": [1, 2],
        "finish_reason": "stop",
        "position": 9,
        "durable_position": 9,
        "generation": 4,
        "usage": {"prompt_tokens": 0, "completion_tokens": 2},
        **changed,
    }


def listing(*items: dict[str, Any], more: bool = False, key: str = "name") -> dict[str, Any]:
    """A page."""
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0][key] if items else None,
        "last_id": items[-1][key] if items else None,
        "has_more": more,
    }


@pytest.fixture
def shapes() -> Any:
    """The makers of objects, for test files (conftest cannot be imported)."""

    class Shapes:
        actor = staticmethod(make_actor)
        version = staticmethod(make_version)
        turn = staticmethod(make_turn)
        listing = staticmethod(listing)

    return Shapes


@pytest.fixture
def rude() -> Iterator[str]:
    """A server that takes the request and hangs up in the middle of its answer."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    thread.join()
    listening.close()
