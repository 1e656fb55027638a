"""A server with the toy guest in a process of its own, over a data folder that is given.

Where a model plays no part, none should be waited for.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from statevisor.api import logs
from statevisor.api.app import build_app
from statevisor.api.clock import SystemClock
from statevisor.api.garbage import settle
from statevisor.api.host import Host
from statevisor.api.metrics import PrometheusMeter
from statevisor.api.settings import ServerSettings
from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.errors import StatevisorError
from statevisor.hypervisor.visor import Visor
from statevisor.store.catalog import SqlCatalog
from statevisor.store.host import HostTier
from statevisor.store.memory_images import MemoryImages


@dataclass(frozen=True, slots=True)
class ToyServer:
    """Where it listens, and what memory it takes."""

    url: str
    pid: int

    def peak_mb(self) -> int | None:
        """The most memory it ever had, in MB; None where the kernel does not tell."""
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        except OSError:
            return None
        found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        return int(found[0]) // 1024 if found else None


@contextmanager
def serving(folder: Path, model: str) -> Iterator[ToyServer]:
    """A server for the length of the block. Raises: StatevisorError, if it does not start."""
    spawn = multiprocessing.get_context("spawn")
    mine, its = spawn.Pipe()
    child = spawn.Process(target=_child, args=(folder, model, its))
    child.start()
    its.close()
    try:
        url = mine.recv()
        yield ToyServer(url, child.pid or 0)
    except EOFError:
        raise StatevisorError("the server of the measurement did not start") from None
    finally:
        mine.close()  # the sign to end
        child.join()


def _child(folder: Path, model: str, pipe: Connection) -> None:
    logs.configure("error", "text")
    asyncio.run(_serve(folder, model, pipe))


async def _serve(folder: Path, model: str, pipe: Connection) -> None:
    """Serve until the other end of the pipe is closed."""
    async with _application(folder, model) as app:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        settle()
        pipe.send(f"http://127.0.0.1:{runner.addresses[0][1]}")
        await asyncio.to_thread(_wait, pipe)
        await runner.cleanup()


def _wait(pipe: Connection) -> None:
    try:
        pipe.recv()
    except EOFError:
        return


@asynccontextmanager
async def _application(folder: Path, model: str) -> AsyncIterator[web.Application]:
    catalog = await SqlCatalog.open(folder)
    meter = PrometheusMeter()
    visor = Visor(
        guests=[ToyGuest(name=model, slots=64)],
        catalog=catalog,
        images=MemoryImages(),
        frames=HostTier,
        config=VisorConfig(recover_actors=0, host_bytes=1 << 20),
        clock=SystemClock(),
        meter=meter,
    )
    await visor.start(await catalog.claim("bench"))
    host = Host(settings=ServerSettings(), meter=meter, version=version("statevisor"))
    host.attach(visor)
    try:
        yield build_app(host)
    finally:
        await visor.close()


class Wire:
    """One connection to a server that stays open: what a client's library does."""

    def __init__(self, url: str) -> None:
        self._connection = HTTPConnection(url.removeprefix("http://"), timeout=600)

    def get(self, route: str) -> bytes:
        """The body of an answer; that there is nothing is one. Raises: StatevisorError."""
        return self._ask("GET", route, None)

    def pieces(self, route: str) -> Iterator[bytes]:
        """A long answer in whole lines, none of which is kept. Raises: StatevisorError."""
        self._connection.request("GET", route)
        answer = self._connection.getresponse()
        if answer.status >= 400:
            raise StatevisorError(f"GET {route} was refused: {answer.read()[:300]!r}")
        yield from answer

    def post(self, route: str, body: object) -> Any:
        """Send JSON, return JSON. Raises: StatevisorError."""
        return orjson.loads(self._ask("POST", route, orjson.dumps(body)))

    def close(self) -> None:
        """Let the connection go."""
        self._connection.close()

    def _ask(self, method: str, route: str, body: bytes | None) -> bytes:
        headers = {"Content-Type": "application/json"} if body else {}
        self._connection.request(method, route, body, headers)
        answer = self._connection.getresponse()
        read = answer.read()
        if answer.status >= 400 and answer.status != 404:
            raise StatevisorError(f"{method} {route} was refused: {read[:300]!r}")
        return read
