"""The demonstration's server on twins: toy guest, memory store, the real HTTP application."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import zlib
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog
from aiohttp import web

from statevisor.api.app import build_app
from statevisor.api.cli.client import Client
from statevisor.api.host import Host
from statevisor.api.metrics import PrometheusMeter
from statevisor.api.settings import ServerSettings
from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.visor import Visor
from statevisor.store.host import HostTier
from statevisor.store.memory import MemoryCatalog
from statevisor.store.memory_images import MemoryImages

_ROW_BYTES = 80


class WallClock:
    """The machine's time."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()


class SlowToy(ToyGuest):
    """A toy that needs a moment for a step, so that a kill can meet it in mid-sentence."""

    def step(self, plan: Any) -> Any:
        time.sleep(0.001)
        return super().step(plan)


@dataclass
class TwinMachine:
    """What the demonstration starts, kills and stops; the store outlives the server."""

    guest: type[ToyGuest] = SlowToy
    catalog: MemoryCatalog = field(default_factory=MemoryCatalog)
    images: MemoryImages = field(default_factory=MemoryImages)
    starts: int = 0

    def start(self) -> Client:
        self.starts += 1
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return Client(self._call(self._up()), timeout_s=30)

    def kill(self) -> None:
        self._call(self._down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def stop(self) -> None:
        if not self._loop.is_closed():
            self.kill()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _up(self) -> str:
        meter = PrometheusMeter()
        self._visor = Visor(
            guests=[self.guest(slots=20)],
            catalog=self.catalog,
            images=self.images,
            frames=lambda memory, row: HostTier(memory, row, checksum=zlib.crc32),
            config=VisorConfig(host_bytes=_ROW_BYTES * 20),
            clock=WallClock(),
            meter=meter,
        )
        await self._visor.start(await self.catalog.claim(f"process-{self.starts}"))
        host = Host(settings=ServerSettings(), meter=meter, version="0")
        host.attach(self._visor)
        # No time to finish: a killed server ends no answer.
        self._runner = web.AppRunner(build_app(host), shutdown_timeout=0, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _down(self) -> None:
        await self._visor.close()  # first, so that nothing is stepped any more
        await self._runner.cleanup()


@pytest.fixture
def twin_machine() -> Iterator[Any]:
    """The class; a test chooses guest and store."""
    # A line per request would be most of the work.
    quiet = structlog.make_filtering_bound_logger(logging.WARNING)
    structlog.configure(wrapper_class=quiet)
    yield TwinMachine
    structlog.reset_defaults()


@pytest.fixture
def slow_toy() -> type[ToyGuest]:
    """The undisturbed guest."""
    return SlowToy
