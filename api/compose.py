"""The parts of a server put together: store, guest, visor. The only place that knows them all."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from statevisor.api.clock import SystemClock
from statevisor.api.settings import Settings, steer
from statevisor.guests import build_guest
from statevisor.guests.starved_blas import ENVIRONMENT
from statevisor.hypervisor.ports import Meter
from statevisor.hypervisor.steady import SteadyTime
from statevisor.hypervisor.visor import Visor
from statevisor.store.backup import IMAGES, FolderArchive
from statevisor.store.catalog import SqlCatalog
from statevisor.store.fsck import check_not_lost
from statevisor.store.host import HostTier
from statevisor.store.images import SlabImages
from statevisor.store.slabs import SlabConfig
from statevisor.store.workers import stop_process


@asynccontextmanager
async def powered(settings: Settings, meter: Meter) -> AsyncIterator[Visor]:
    """A visor over the data folder for the length of the block; it is closed, not drained.

    Raises: Unavailable (the folder is in use), ModelNotFound, CheckpointInvalid and what else
    keeps a part from being opened; then nothing stays open.
    """
    config = settings.visor()
    owner = f"{socket.gethostname()}:{os.getpid()}"
    async with AsyncExitStack() as undo:
        await asyncio.to_thread(check_not_lost, settings.data)
        # the store first: that another server holds the folder is told before a model is loaded
        catalog = await SqlCatalog.open(
            settings.data,
            keep_keys_us=config.idempotency_s * 1_000_000,
            on_broken=stop_process,
            aged_us=SteadyTime(SystemClock()).now_us,
        )
        undo.push_async_callback(catalog.close)
        incarnation = await catalog.claim(owner)
        open_images = partial(
            SlabImages.open,
            settings.data / IMAGES,
            await catalog.live_extents(),
            incarnation=incarnation,
            config=SlabConfig(limit_bytes=settings.nvme_bytes),
        )
        images = await asyncio.to_thread(open_images)
        undo.push_async_callback(images.close)
        steer(ENVIRONMENT)
        guest = await asyncio.to_thread(build_guest, settings.guest())
        visor = Visor(
            guests=[guest],
            catalog=catalog,
            images=images,
            frames=HostTier,
            config=config,
            clock=SystemClock(),
            meter=meter,
            archive=FolderArchive(settings.data, images),
        )
        await visor.start(incarnation)
        undo.pop_all()
    try:
        yield visor
    finally:
        await visor.close()
        await images.close()
