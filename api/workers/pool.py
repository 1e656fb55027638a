"""All workers, as the engine's process sees them: started, told of changes, replaced, ended."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import structlog

from statevisor.api.host import Host
from statevisor.api.logs import LogFormat, LogLevel
from statevisor.api.workers.port import Port

#: Seconds between the death of a worker and its successor; a worker that cannot live must not
#: take the machine along.
_PAUSE_S = 0.5
#: Seconds that a worker has to end by itself, beyond those of its running requests.
_GRACE_S = 3.0

log = structlog.get_logger(__name__)


class Pool:
    """So many worker processes on the same listening sockets."""

    def __init__(
        self,
        host: Host,
        sockets: Sequence[socket.socket],
        *,
        log_level: LogLevel,
        log_format: LogFormat,
    ) -> None:
        self._host = host
        self._sockets = sockets
        self._logs = {"log_level": log_level, "log_format": log_format}
        self._ports: set[Port] = set()
        self._children: set[asyncio.subprocess.Process] = set()
        self._watches: list[asyncio.Task[None]] = []
        self._ending = asyncio.Event()
        host.changed = self._tell

    async def start(self, count: int) -> None:
        """Start the workers; they answer that the model loads until the host has a visor."""
        children = [await self._spawn() for _ in range(count)]
        self._watches = [asyncio.create_task(self._keep(child)) for child in children]

    async def stop(self) -> None:
        """Let the workers end their requests and go."""
        self._ending.set()
        for child in self._children:
            with suppress(ProcessLookupError):
                child.terminate()
        if self._watches:
            within = self._host.settings.drain_s + _GRACE_S
            _, late = await asyncio.wait(self._watches, timeout=within)
            for child in self._children if late else ():
                with suppress(ProcessLookupError):
                    child.kill()
            await asyncio.wait(self._watches)

    def _tell(self) -> None:
        for port in self._ports:
            port.tell_state()

    async def _keep(self, child: asyncio.subprocess.Process) -> None:
        """See one worker to its end, then another, until the server ends."""
        while True:
            code = await child.wait()
            self._children.discard(child)
            if self._ending.is_set():
                return
            log.error("a worker ended and is replaced", pid=child.pid, code=code)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), _PAUSE_S)
                return
            child = await self._spawn()
            if self._ending.is_set():
                child.terminate()

    async def _spawn(self) -> asyncio.subprocess.Process:
        ours, its = socket.socketpair()
        numbers = [one.fileno() for one in self._sockets]
        with its:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "statevisor.api.workers.process"),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=[its.fileno(), *numbers],
                start_new_session=True,  # Ctrl-C reaches the engine, which ends its workers itself
            )
            order = self._order(its.fileno(), numbers)
        self._children.add(child)
        assert child.stdin is not None
        with suppress(ConnectionError):
            child.stdin.write(json.dumps(order, default=os.fspath).encode())
            await child.stdin.drain()
        child.stdin.close()
        port = Port(self._host, *await asyncio.open_connection(sock=ours))
        self._ports.add(port)
        served = asyncio.create_task(port.run())
        served.add_done_callback(lambda _: self._ports.discard(port))
        return child

    def _order(self, line: int, sockets: Sequence[int]) -> dict[str, Any]:
        return {
            "line": line,
            "sockets": list(sockets),
            "settings": asdict(self._host.settings),
            "version": self._host.version,
            **self._logs,
        }
