"""Moves between the tiers, each beside what the disk alone takes for the same bytes.

Every move has its floor right before or right behind it, in turn: a slow moment of a shared disk
hits both, and neither always gets what a rate limit has saved up. The ratios are those of such
pairs, and their spread is told.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from statevisor.api.bench.crowd import crowd
from statevisor.api.bench.floor import Floor
from statevisor.api.bench.parts import Parts
from statevisor.api.bench.report import Report, conditions, quantiles
from statevisor.api.bench.stage import Stage, staged
from statevisor.api.bench.wide_guest import WideGuest
from statevisor.guests.pages import pages
from statevisor.hypervisor.commands import Append, CreateActor, Hibernate, Resume
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.records import ImageRef
from statevisor.hypervisor.vocab import Tier

ACTOR: Final = "sleeper"
GROUP: Final = 8  #: hibernated at once
PARTS: Final = 20  #: moves of each kind whose parts are timed
CROWD_ROW_BYTES: Final = 512 << 10  #: about the embedded guest's
#: What each of these is held against.
FLOORS: Final = {
    "put": "write_sync",
    "put_8_at_once": "write_8_sync",
    "hibernate_nvme": "write_sync",
    "get": "read_direct",
    "resume_nvme": "read_direct",
}
#: The same read into memory of small pages, which any program gets, and what is held against it.
SMALL_PAGES: Final = "read_direct_small_pages"
BY_SMALL_PAGES: Final = ("get", "resume_nvme")
Action = Callable[[], Awaitable[object]]


class Timed:
    """Milliseconds of several actions, and of the processor within them."""

    def __init__(self) -> None:
        self.ms: dict[str, list[float]] = {}
        self.cpu_ms: dict[str, list[float]] = {}

    async def pair(self, name: str, action: Action, floor: Action) -> None:
        """Do an action and what it is held against, in turns in this order and in the other."""
        steps = [(name, action), (f"{FLOORS[name]}_beside_{name}", floor)]
        for step, act in steps[:: 1 if len(self.ms.get(name, ())) % 2 else -1]:
            await self.run(step, act)

    async def run(self, name: str, action: Action) -> None:
        """Do it once."""
        cpu, began = time.process_time(), time.perf_counter()
        await action()
        self.ms.setdefault(name, []).append((time.perf_counter() - began) * 1e3)
        self.cpu_ms.setdefault(name, []).append((time.process_time() - cpu) * 1e3)

    def report(self, nbytes: int) -> dict[str, Any]:
        """Every action's times, and the ratios of those that have a floor."""
        found: dict[str, Any] = {}
        for name, samples in self.ms.items():
            found[name] = {
                "ms": quantiles(samples, digits=2),
                "cpu_ms_p50": quantiles(self.cpu_ms[name], digits=2)["p50"],
                "gb_s_p50": round(nbytes / quantiles(samples)["p50"] / 1e6, 3),
            }
        for name, floor in FLOORS.items():
            mine, base = self.ms[name], self.ms[f"{floor}_beside_{name}"]
            pairs = [a / b for a, b in zip(mine, base, strict=True)]
            low, high = quantiles(mine), quantiles(base)
            ratio = {"of_pairs": quantiles(pairs, digits=2), **_ratios(low, high)}
            found[name]["ratio"] = ratio
        for name in BY_SMALL_PAGES:
            low, high = quantiles(self.ms[name]), quantiles(self.ms[SMALL_PAGES])
            found[name]["ratio_small_pages"] = _ratios(low, high)
        return found


def _ratios(mine: Mapping[str, float], floor: Mapping[str, float]) -> dict[str, float]:
    return {f"of_{rank}": round(mine[rank] / floor[rank], 2) for rank in ("min", "p10", "p50")}


class Mover:
    """One actor that goes up and down, and one image beside it."""

    def __init__(self, stage: Stage, guest: WideGuest, floor: Floor) -> None:
        self._stage = stage
        self._floor = floor
        self._row = pages(guest.layout.row_bytes)
        guest.save(1, self._row)
        self._meta = ImageMeta(
            layout=guest.layout,
            fingerprints=guest.fingerprints,
            position=2,
            absorbed=1,
            pending=(7,),
        )
        self._refs: list[ImageRef] = []

    async def prepare(self, extents: int) -> None:
        """Let the slab files grow now, and keep one image in each, so that none comes or goes."""
        kept: dict[int, ImageRef] = {}
        for ref in [await self._stage.images.put(self._row, self._meta) for _ in range(extents)]:
            if kept.setdefault(ref.slab, ref) is not ref:
                self._stage.images.free(ref)
        await self._stage.visor.create(CreateActor(name=ACTOR, prompt="once"))

    async def round(self, timed: Timed) -> None:
        """Every move once, each beside its floor."""
        await self.touch()
        await timed.pair("hibernate_nvme", self.hibernate_nvme, self.write_sync)
        await timed.pair("put", self.put, self.write_sync)
        await timed.pair("put_8_at_once", self.put_group, self.write_group)
        await timed.pair("resume_nvme", self.resume, self.read_direct)
        await timed.pair("get", self.get, self.read_direct)
        await timed.run(SMALL_PAGES, self.read_small_pages)
        await timed.run("hibernate_host", self.hibernate_host)
        await timed.run("evict_clean", self.hibernate_nvme)  # its image is there: nothing to write
        await self.resume()
        await self.hibernate_host()
        await timed.run("resume_host", self.resume)

    def watched(self, parts: Parts, guest: WideGuest) -> None:
        """What a whole move consists of."""
        catalog, images = self._stage.catalog, self._stage.images
        parts.watch(guest, save="copy", load="copy")
        parts.watch(images, put="put", get="get")
        parts.watch(images.files, write="disk_write", read="disk_read", sync="disk_sync")
        parts.watch(catalog, actor="find", keep_image="commit")
        parts.watch(catalog, nearest_image="rows", standing="rows")

    async def parts(self, parts: Parts) -> None:
        """Every whole move once, part by part."""
        await self.touch()
        await parts.time("hibernate_nvme", self.hibernate_nvme)
        await parts.time("resume_nvme", self.resume)
        await parts.time("hibernate_host", self.hibernate_host)
        await parts.time("resume_host", self.resume)

    async def touch(self) -> None:
        """Change the state, so that it needs an image of its own."""
        await self._stage.visor.append(Append(actor=ACTOR, prompt=" more"))

    async def hibernate_nvme(self) -> None:
        await self._stage.visor.hibernate(Hibernate(actor=ACTOR, tier=Tier.NVME))

    async def hibernate_host(self) -> None:
        await self._stage.visor.hibernate(Hibernate(actor=ACTOR, tier=Tier.HOST))

    async def resume(self) -> None:
        await self._stage.visor.resume(Resume(actor=ACTOR))

    async def put(self) -> None:
        self._refs.append(await self._stage.images.put(self._row, self._meta))
        if len(self._refs) > 2:
            self._stage.images.free(self._refs.pop(0))

    async def put_group(self) -> None:
        put = self._stage.images.put
        for ref in await asyncio.gather(*(put(self._row, self._meta) for _ in range(GROUP))):
            self._stage.images.free(ref)

    async def get(self) -> None:
        await self._stage.images.get(self._refs[-1], self._row)

    async def write_sync(self) -> None:
        self._floor.write()

    async def write_group(self) -> None:
        self._floor.write(GROUP)

    async def read_direct(self) -> None:
        self._floor.read()

    async def read_small_pages(self) -> None:
        self._floor.read_small_pages()


async def moves(folder: Path, *, row_bytes: int, rounds: int) -> Report:
    """Hibernate, resume, put and get of one state through the disk and through host memory."""
    guest = WideGuest(row_bytes, slots=2)
    config = VisorConfig(host_bytes=2 * row_bytes)
    floor = Floor(folder / "floor", row_bytes + 2 * 4096)
    timed, parts = Timed(), Parts()
    try:
        async with staged(folder / "data", guest, config) as stage:
            mover = Mover(stage, guest, floor)
            await mover.prepare(rounds + 3 * GROUP)
            for _ in range(2):
                await mover.round(Timed())
            for _ in range(rounds):
                await mover.round(timed)
            mover.watched(parts, guest)
            for _ in range(min(rounds, PARTS)):
                await mover.parts(parts)
    finally:
        floor.close()
    report = {"row_bytes": row_bytes, "rounds": rounds, "direct": floor.is_direct}
    return {**report, **timed.report(row_bytes), "parts": parts.report()}


def run(
    rounds: int, *, row_bytes: int, actors: int, host_bytes: int, scratch: Path | None
) -> Report:
    """Moves of one state, and a crowd of actors of a smaller one; 0 actors: no crowd."""
    report: dict[str, Any] = {"bench": "tiers", "conditions": conditions()}
    if actors:  # first, while the process holds nothing else
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            report["crowd"] = asyncio.run(
                crowd(
                    Path(folder),
                    actors=actors,
                    row_bytes=min(row_bytes, CROWD_ROW_BYTES),
                    host_bytes=host_bytes,
                )
            )
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        report["moves"] = asyncio.run(moves(Path(folder), row_bytes=row_bytes, rounds=rounds))
    return report
