"""A worker: HTTP on the server's socket, everything else asked of the engine.

It ends when the engine's process has ended, however that came about.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from statevisor.api import logs
from statevisor.api.front import serve_app
from statevisor.api.garbage import settle
from statevisor.api.host import Host
from statevisor.api.settings import ServerSettings
from statevisor.api.workers.remote import RelayMeter, RemoteVisor
from statevisor.hypervisor.commands import DrainView

if TYPE_CHECKING:
    from statevisor.api.metrics import PrometheusMeter
    from statevisor.hypervisor.visor import Visor


@dataclass(slots=True, kw_only=True)
class WorkerHost(Host):
    """A host whose metrics and whose end are the engine's business."""

    engine: RemoteVisor

    def told(self, loaded: bool, draining: bool) -> None:
        """Take in what the engine says of itself."""
        if loaded and not self.loaded:
            self.attach(cast("Visor", self.engine))
        self.draining = draining

    async def page(self) -> bytes:
        """The metrics of the engine and of all workers."""
        return await self.engine.page()

    async def drain(self) -> DrainView:
        """Have the engine drain; all workers are told of it."""
        return await self.engine.drain()


def main() -> None:
    """Serve as the JSON object on stdin says."""
    order = json.load(sys.stdin)
    logs.configure(order["log_level"], order["log_format"])
    asyncio.run(_serve(order))


async def _serve(order: Mapping[str, Any]) -> None:
    line = socket.socket(fileno=order["line"])
    meter = RelayMeter()
    engine = RemoteVisor(*await asyncio.open_connection(sock=line))
    meter.attach(engine)
    host = WorkerHost(
        settings=ServerSettings(**order["settings"]),
        # routes count with it; what it came to is read from the engine
        meter=cast("PrometheusMeter", meter),
        version=order["version"],
        engine=engine,
    )

    sockets = [socket.socket(fileno=number) for number in order["sockets"]]
    runner = await serve_app(host, sockets)
    settle()
    ending = asyncio.create_task(engine.run(host.told))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.cancel)
    await asyncio.wait({ending})
    await runner.cleanup()


if __name__ == "__main__":
    main()
