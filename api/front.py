"""Where clients arrive: the listening sockets, and whoever serves them, here or in workers."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from aiohttp import web

from statevisor.api.app import build_app
from statevisor.api.auth import is_loopback
from statevisor.api.connection import Connection
from statevisor.api.host import Host
from statevisor.api.settings import Settings
from statevisor.hypervisor.errors import Unavailable

_BACKLOG = 1024

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """What answers under `url`; `close` lets running requests end first."""

    url: str
    close: Callable[[], Awaitable[None]]


@asynccontextmanager
async def listening(host: Host, settings: Settings) -> AsyncIterator[Front]:
    """Serve the host for the length of the block. Raises: Unavailable (the address is taken)."""
    address = host.settings
    if address.token is None and not is_loopback(address.host):
        log.warning("anyone who reaches this address may do anything", host=address.host)
    sockets = await _bind(address.host, address.port)
    async with AsyncExitStack() as undo:
        for one in sockets:
            undo.callback(one.close)
        workers = settings.worker_processes()
        served = _by_workers(host, settings, sockets, workers) if workers else _here(host, sockets)
        close = await served
        undo.push_async_callback(close)
        yield Front(url=_url(sockets[0]), close=close)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The application and the sockets that it listens on."""

    runner: web.AppRunner
    listeners: Sequence[asyncio.Server]

    async def cleanup(self) -> None:
        """Take no new connection, let running requests end that have arrived."""
        loop = asyncio.get_running_loop()
        for one in self.listeners:
            for listening in one.sockets:
                loop.remove_reader(listening)
        # Who was accepted just now is the runner's to close two turns of the loop later; a listener
        # that is closed before would leave them open.
        for _ in range(2):
            await asyncio.sleep(0)
        for one in self.listeners:
            one.close()
        known = self.runner.server.connections if self.runner.server else ()  # done before: none
        for connection in known:
            assert isinstance(connection, Connection)
            connection.stop_reading()
        await self.runner.cleanup()


async def serve_app(host: Host, sockets: Sequence[socket.socket]) -> Serving:
    """The application on its sockets, in this process."""
    runner = web.AppRunner(
        build_app(host),
        handler_cancellation=True,  # a client that goes away ends its handler: see api/sse.py
        shutdown_timeout=host.settings.drain_s,
    )
    await runner.setup()
    server = runner.server
    assert server is not None
    loop, connect = asyncio.get_running_loop(), partial(Connection, host, server)
    listeners = [await loop.create_server(connect, sock=one, backlog=_BACKLOG) for one in sockets]
    return Serving(runner=runner, listeners=listeners)


async def _here(host: Host, sockets: Sequence[socket.socket]) -> Callable[[], Awaitable[None]]:
    return (await serve_app(host, sockets)).cleanup


async def _by_workers(
    host: Host, settings: Settings, sockets: Sequence[socket.socket], count: int
) -> Callable[[], Awaitable[None]]:
    # Imported here: who has no workers need not load them.
    from statevisor.api.workers.pool import Pool

    pool = Pool(host, sockets, log_level=settings.log_level, log_format=settings.log_format)
    await pool.start(count)
    return pool.stop


async def _bind(host: str, port: int) -> list[socket.socket]:
    """A listening socket for every address that the name has. Raises: Unavailable."""
    made: list[socket.socket] = []
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, address in dict.fromkeys((one[0], one[4]) for one in found):
            if made:  # the port that the first one got
                address = (address[0], made[0].getsockname()[1], *address[2:])
            made.append(_listen(family, address))
    except OSError as error:
        for one in made:
            one.close()
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="Is another server there? Choose another --port, or 0 for any free one.",
        ) from error
    return made


def _listen(family: int, address: Any) -> socket.socket:
    """Raises: OSError."""
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
        one.listen(_BACKLOG)
        one.setblocking(False)
    except OSError:
        one.close()
        raise
    return one


def _url(listening: socket.socket) -> str:
    """Where a client on this machine reaches the server."""
    host, port = listening.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
