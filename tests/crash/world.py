"""One data folder, open: catalog, images and visor over it, as the server has them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.visor import Visor
from statevisor.store.catalog import SqlCatalog
from statevisor.store.files import Files
from statevisor.store.host import HostTier
from statevisor.store.images import SlabImages
from statevisor.store.slabs import SlabConfig

FRAMES = 2


class RealTime:
    """The machine's time."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()


class Silent:
    """A meter that measures nothing."""

    def observe(self, name: str, value: float, **labels: str) -> None: ...
    def count(self, name: str, n: float = 1, **labels: str) -> None: ...


def make_guest(kind: str, slots: int = 3) -> Any:
    """The toy, or a small RWKV-7 from a checkpoint folder."""
    if kind == "toy":
        return ToyGuest(slots=slots)
    from statevisor.guests import GuestConfig, build_guest

    return build_guest(GuestConfig(model=kind, slots=slots, device="cpu", threads=1), verify=False)


@dataclass(slots=True)
class World:
    """One data folder, open."""

    catalog: SqlCatalog
    images: SlabImages
    visor: Visor
    guest: Any
    #: Places whose image lost its name: who stood there before takes it to have one still.
    disowned: set[int] = field(default_factory=set)

    async def close(self) -> None:
        await self.visor.close()
        await self.images.close()

    def check(self) -> None:
        """Slots, frames and extents are conserved."""
        for batcher in self.visor._batchers.values():
            batcher.residency.check()
            batcher.residency.frames.check()  # type: ignore[attr-defined]
        self.images.check()


async def open_world(
    folder: Path, guest: Any, *, files: Files | None = None, locked: bool = True
) -> World:
    """As the server does it: the catalog, a claim, the images it names, the visor."""
    catalog = await SqlCatalog.open(folder, locked=locked)
    try:
        incarnation = await catalog.claim("life")
        row = guest.layout.row_bytes
        unit = 128 * 1024 if row < 1024 else 1 << 20
        images = SlabImages.open(
            folder / "images",
            await catalog.live_images(),
            incarnation=incarnation,
            config=SlabConfig(slab_bytes=unit, step_bytes=unit // 4, threads=2),
            files=files,
        )
    except BaseException:
        await catalog.close()
        raise
    visor = Visor(
        guests=[guest],
        catalog=catalog,
        images=images,
        frames=HostTier,
        config=VisorConfig(host_bytes=row * FRAMES, checkpoint_tokens=40, step_tokens=64),
        clock=RealTime(),
        meter=Silent(),
    )
    await visor.start(incarnation)
    return World(catalog, images, visor, guest)
