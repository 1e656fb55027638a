"""A data folder and the hypervisor that runs on it, on twins or on the real store."""

from __future__ import annotations

import asyncio
import random
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statemodel.oracle import ROW_BYTES

from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.errors import Unavailable
from statevisor.hypervisor.retention import DENSE
from statevisor.hypervisor.visor import Visor
from statevisor.store.catalog import SqlCatalog
from statevisor.store.host import HostTier
from statevisor.store.images import SlabImages
from statevisor.store.memory import MemoryCatalog
from statevisor.store.memory_images import MemoryImages
from statevisor.store.slabs import SlabConfig

#: Small slabs, so that a history of a few hundred images has several.
SLABS = SlabConfig(slab_bytes=64 << 10, step_bytes=16 << 10, threads=2)


class Clock:
    """Time moves when the machine says so."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def now_us(self) -> int:
        return int(self.seconds * 1_000_000)

    def monotonic(self) -> float:
        return self.seconds


class Tally:
    """A meter that adds up what is counted."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def observe(self, name: str, value: float, **labels: str) -> None: ...

    def count(self, name: str, n: float = 1, **labels: str) -> None:
        self.counts[name] += int(n)


class Lagging:
    """A catalog that takes some turns of the event loop before and after each effect.

    So a process can die with a write under way, and before or behind its effect. `broken` is how
    many journal groups from now on the disk refuses, the first after `intact` good ones.
    """

    def __init__(self, catalog: Any, lag: int, seed: int) -> None:
        self._catalog = catalog
        self._lag = lag
        self._random = random.Random(seed)
        self.intact = 0
        self.broken = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._catalog, name)
        if not asyncio.iscoroutinefunction(found) or not self._lag:
            return found

        async def lagging(*args: Any, **kwargs: Any) -> Any:
            await self._wait()
            result = await found(*args, **kwargs)
            await self._wait()
            return result

        return lagging

    async def journal(self, *args: Any, **kwargs: Any) -> None:
        await self._wait()
        if self.intact:
            self.intact -= 1
        elif self.broken:
            self.broken -= 1
            raise Unavailable("the disk refuses a group")
        await self._catalog.journal(*args, **kwargs)
        await self._wait()

    async def _wait(self) -> None:
        for _ in range(self._random.randint(0, self._lag) if self._lag else 0):
            await asyncio.sleep(0)


@dataclass
class World:
    """One folder; `boot` is a fresh process over it."""

    slots: int = 2
    frames: int = 1
    lag: int = 0
    dense: int = DENSE  #: behind its newest image, where a segment's images all stay
    config: dict[str, Any] = field(default_factory=dict)
    #: Changes a hypervisor that is about to start; the negative controls are such changes.
    spoil: Callable[[World], None] = lambda world: None

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.meter = Tally()
        self.visor: Visor

    async def start(self) -> None:
        """Open the store, take the folder and begin to step."""
        await self.open()
        self.guest = ToyGuest(slots=self.slots)
        settings = {"slot_wait_s": 0.0, "host_bytes": ROW_BYTES * self.frames, **self.config}
        self.visor = Visor(
            guests=[self.guest],
            catalog=self.catalog,
            images=self.images,
            frames=lambda memory, row: HostTier(memory, row, checksum=zlib.crc32),
            config=VisorConfig(**settings),
            clock=self.clock,
            meter=self.meter,
        )
        self.visor._housekeeping._collector._dense = self.dense
        self.spoil(self)
        await self.visor.start(self.incarnation)

    async def stop(self) -> None:
        """End the process where it stands, as a kill does."""
        await self.visor.close()

    async def open(self) -> None:
        raise NotImplementedError

    async def leave(self) -> None:
        """Stop for good."""
        await self.stop()

    async def quiet(self) -> None:
        """Wait until every operation has ended, and whoever had to make room has moved."""
        evictions = self.residency.evictions
        async with asyncio.timeout(10):
            while self.visor._tasks._running or evictions._leaving or evictions._wanted.is_set():
                await self.visor._tasks.wait()
                await asyncio.gather(*evictions._leaving)
                await asyncio.sleep(0)

    @property
    def residency(self) -> Any:
        return self.visor._batchers["toy"].residency

    def row(self, slot: int) -> bytes:
        row = bytearray(ROW_BYTES)
        self.guest.save(slot, memoryview(row))
        return bytes(row)

    def frame(self, actor_id: str) -> memoryview:
        """The bytes of a frame, whatever is in them."""
        frames = self.residency.frames
        view: memoryview = frames._row(frames._held[actor_id].index)
        return view


class TwinWorld(World):
    """Everything in dictionaries."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._memory = MemoryCatalog(now_us=self.clock.now_us)
        self.catalog: Any = Lagging(self._memory, self.lag, seed=self.slots + self.lag)
        self.images: Any = MemoryImages()

    async def open(self) -> None:
        self.incarnation = await self._memory.claim("model")


class StoreWorld(World):
    """SQLite and slab files in a folder."""

    def __init__(self, folder: Path, migrated: Path, **settings: Any) -> None:
        self._folder = folder
        super().__init__(**settings)
        shutil.copy(migrated, folder)

    async def open(self) -> None:
        catalog = await SqlCatalog.open(self._folder, now_us=self.clock.now_us)
        self.incarnation = await catalog.claim("model")
        self.catalog = Lagging(catalog, 0, 0)
        self.images = SlabImages.open(
            self._folder / "images",
            await catalog.live_images(),
            incarnation=self.incarnation,
            config=SLABS,
        )

    async def stop(self) -> None:
        await super().stop()
        await self.images.close()


async def within(seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
    """Run work, which must end in that time."""
    async with asyncio.timeout(seconds):
        return await work
