"""One server process: listen at once, load, serve, and on a signal drain and end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import structlog

from statevisor.api import logs
from statevisor.api.compose import powered
from statevisor.api.front import listening
from statevisor.api.garbage import settle
from statevisor.api.host import Host
from statevisor.api.metrics import PrometheusMeter
from statevisor.api.settings import Settings
from statevisor.hypervisor.errors import StatevisorError, Unavailable
from statevisor.store.db import check_unused

#: Seconds. The engine thread must not wait for the interpreter as long as a step takes.
SWITCH_S = 5e-4

log = structlog.get_logger(__name__)


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises: what keeps the server from starting."""
    logs.configure(settings.log_level, settings.log_format)
    sys.setswitchinterval(SWITCH_S)
    asyncio.run(_serve_until_signalled(settings))


async def _serve_until_signalled(settings: Settings) -> None:
    async with signalled() as stop:
        await serve(settings, stop)


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Listen, load, serve until `stop` is set, drain.

    Raises: Unavailable (the address or the folder is taken), what keeps a model from loading.
    """
    # before anyone is told an address: a second server on one folder ends at once
    await asyncio.to_thread(check_unused, settings.data)
    server = settings.server()
    host = Host(settings=server, meter=PrometheusMeter(), version=version("statevisor"))
    async with listening(host, settings) as front:
        url = front.url
        if server.port_file is not None:
            _announce(server.port_file, url)
        log.info("listening", url=url)
        log.info("loading", model=settings.model, data=str(settings.data))
        async with AsyncExitStack() as machine:
            visor = machine.enter_async_context(powered(settings, host.meter))
            if not await _ends_before(stop, loading := asyncio.create_task(visor)):
                log.info("stopped while loading")
                return
            settle()
            host.attach(loading.result())
            log.info("ready", url=url)
            if await _ends_before(stop, dying := asyncio.create_task(loading.result().failed())):
                log.critical("a part of the hypervisor ended", error=repr(dying.result()))
                raise StatevisorError("the hypervisor stopped; start again: nothing told is lost")
            log.info("draining")
            drained = await host.drain()
            log.info("drained", hibernated=drained.hibernated, failed=drained.failed)
            # nobody may call a visor that is closed
            await front.close()


async def _ends_before(stop: asyncio.Event, work: asyncio.Task[Any]) -> bool:
    """Whether the work ended before the stop came; if not it is cancelled."""
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return True
        work.cancel()
        await asyncio.wait({work})
        return False
    finally:
        stopping.cancel()


@asynccontextmanager
async def signalled() -> AsyncIterator[asyncio.Event]:
    """An event that the first SIGTERM or SIGINT sets; a second one ends the process at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)

    def heard() -> None:
        stop.set()
        for one in signals:
            loop.remove_signal_handler(one)

    for one in signals:
        loop.add_signal_handler(one, heard)
    try:
        yield stop
    finally:
        for one in signals:
            loop.remove_signal_handler(one)


def _announce(path: Path, url: str) -> None:
    """Write {"url"} so that a reader sees all of it or nothing. Raises: Unavailable."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps({"url": url}))
        draft.replace(path)
    except OSError as error:
        raise Unavailable(
            f"cannot write {path}: {error.strerror}", hint="Name another --port-file."
        ) from error
