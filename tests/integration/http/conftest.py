"""The whole server in this process, over real SQLite and real files; only the guest is the toy."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from statevisor.api import compose, server
from statevisor.api.settings import load
from statevisor.guests import GuestConfig
from statevisor.guests.toy import ToyGuest

#: One row of the toy is 80 bytes.
_HOST_BYTES = 80 * 16


class Server:
    """A running server and a client of it."""

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        task: asyncio.Task[None],
        stop: asyncio.Event,
    ) -> None:
        self.url = url
        self.port = int(url.rpartition(":")[2])
        self.session = session
        self.task = task
        self.stop = stop  #: what a signal sets

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """The JSON answer to a request that must succeed."""
        async with self.session.request(method, self.url + path, json=body, **more) as answer:
            value = await answer.json() if answer.status != 204 else None
            assert answer.status < 300, value
            return value

    async def refused(
        self, method: str, path: str, body: Any = None, **more: Any
    ) -> tuple[int, str]:
        """Status and code of a request that must be refused."""
        async with self.session.request(method, self.url + path, json=body, **more) as answer:
            value = await answer.json()
            assert answer.status >= 400, value
            return answer.status, value["code"]

    async def ready(self) -> bool:
        """Whether it takes work."""
        try:
            async with self.session.get(self.url + "/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for what the server does on its own."""
        async with asyncio.timeout(20):
            while not await condition():  # noqa: ASYNC110 - any state, not an event
                await asyncio.sleep(0.005)

    async def until_status(self, actor: str, status: str) -> None:
        """Wait until an actor has this status."""

        async def reached() -> bool:
            return bool((await self.ask("GET", f"/v1/actors/{actor}"))["status"] == status)

        await self.until(reached)

    async def events(self, path: str, body: dict[str, Any], **more: Any) -> list[tuple[str, Any]]:
        """The events of a stream."""
        async with self.session.post(
            self.url + path, json={**body, "stream": True}, **more
        ) as answer:
            text = await answer.text()
        found = []
        for block in text.split("\n\n"):
            lines = [line for line in block.splitlines() if not line.startswith(":")]
            if lines:
                fields = dict(line.split(": ", 1) for line in lines)
                found.append((fields["event"], json.loads(fields["data"])))
        return found


class SlowToy(ToyGuest):
    """A toy whose steps can be held back."""

    gate: Callable[[], None] = staticmethod(lambda: None)

    def step(self, plan: Any) -> Any:
        SlowToy.gate()
        return super().step(plan)


async def _either(server: asyncio.Task[None], waiting: Coroutine[Any, Any, None]) -> None:
    """Wait, but not for a server that has ended: what it had accepted stays open, unanswered."""
    waiter = asyncio.create_task(waiting)
    await asyncio.wait({server, waiter}, return_when=asyncio.FIRST_COMPLETED)
    if server.done():
        waiter.cancel()
        await asyncio.wait({waiter})
        await server
    await waiter


Boot = Callable[..., Any]


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Boot:
    """Starts a server over one data folder; leaving the block stops it as a signal does."""
    monkeypatch.delenv("STATEVISOR_CONFIG", raising=False)

    def toy(config: GuestConfig) -> ToyGuest:
        return SlowToy(slots=config.slots)

    monkeypatch.setattr(compose, "build_guest", toy)

    starts = itertools.count()

    @asynccontextmanager
    async def start(*, ready: bool = True, **flags: Any) -> AsyncIterator[Server]:
        port_file = tmp_path / f"port-{next(starts)}.json"
        given = {
            "data": tmp_path / "data",
            "port": 0,
            "port_file": port_file,
            "slots": 4,
            "host_bytes": _HOST_BYTES,
            "heartbeat_s": 0.05,
            "drain_s": 1,
            **flags,
        }
        task = asyncio.create_task(server.serve(load(given), stop := asyncio.Event()))
        async with aiohttp.ClientSession() as session, asyncio.timeout(60):
            while not port_file.exists() and not task.done():  # noqa: ASYNC110 - a file
                await asyncio.sleep(0.005)
            if task.done():
                await task
            made = Server(json.loads(port_file.read_text())["url"], session, task, stop)
            if ready:
                await _either(task, made.until(made.ready))
            try:
                yield made
            finally:
                stop.set()
                await task

    return start


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """Logs of the server are not what these tests look at."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.reset_defaults()


@pytest.fixture
def slow_toy() -> Any:
    """The class whose `gate` a test may close; it is open again afterwards."""
    yield SlowToy
    SlowToy.gate = staticmethod(lambda: None)
