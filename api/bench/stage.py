"""A whole hypervisor over a real store in a folder of its own, without HTTP around it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from statevisor.api.clock import SystemClock
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.ports import Guest, Meter
from statevisor.hypervisor.visor import Visor
from statevisor.store.catalog import SqlCatalog
from statevisor.store.host import HostTier
from statevisor.store.images import SlabImages
from statevisor.store.slabs import SlabConfig


class NoMeter:
    """A Meter that forgets."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        pass

    def count(self, name: str, n: float = 1, **labels: str) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a measurement works with."""

    visor: Visor
    catalog: SqlCatalog
    images: SlabImages


@asynccontextmanager
async def staged(
    folder: Path,
    guest: Guest,
    config: VisorConfig,
    *,
    nvme_bytes: int | None = None,
    meter: Meter | None = None,
) -> AsyncIterator[Stage]:
    """A started visor over `folder`; closed, not drained."""
    catalog = await SqlCatalog.open(folder)
    incarnation = await catalog.claim("bench")
    images = SlabImages.open(
        folder / "images",
        await catalog.live_images(),
        incarnation=incarnation,
        config=SlabConfig(limit_bytes=nvme_bytes),
    )
    visor = Visor(
        guests=[guest],
        catalog=catalog,
        images=images,
        frames=HostTier,
        config=config,
        clock=SystemClock(),
        meter=meter or NoMeter(),
    )
    await visor.start(incarnation)
    try:
        yield Stage(visor=visor, catalog=catalog, images=images)
    finally:
        await visor.close()
        await images.close()
