"""What a fork costs: in the catalog and over HTTP, whatever the catalog's size and the history's.

Every fork has a bare commit of the same disk right beside it, in turns: a fork is one transaction,
and no transaction is faster than that. `over_floor_ms` is what is ours.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from statevisor.api.bench.report import Report, conditions, quantiles
from statevisor.api.bench.toy_server import Wire, serving
from statevisor.api.clock import SystemClock
from statevisor.api.metrics import PrometheusMeter
from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.catalog_port import NewActor, Origin
from statevisor.hypervisor.commands import CreateActor, Fork, Snapshot
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.ids import Ids, nth_seed, own_name
from statevisor.hypervisor.visor import Visor
from statevisor.store import synthetic
from statevisor.store.backup import IMAGES
from statevisor.store.catalog import SqlCatalog
from statevisor.store.host import HostTier
from statevisor.store.images import SlabImages
from statevisor.store.synthetic import BareCommits, rows_bytes

CATALOGS: Final = (100, 10_000, 100_000)  #: versions
HISTORIES: Final = (100, 1_000, 10_000, 100_000)  #: tokens
MANY: Final = 1000
_WARM = 20
#: A fingerprint of a build is as long as this.
_BUILD = "sha256:" + "0" * 64


class _Children:
    """New actors as the hypervisor names them."""

    def __init__(self) -> None:
        self._ids = Ids(SystemClock())

    def take(self, count: int = 1) -> Sequence[NewActor]:
        """So many that nobody had before."""
        first = self._ids.seed()
        return [
            NewActor(
                id=key,
                name=own_name(key),
                model=synthetic.MODEL,
                seed=nth_seed(first, n),
                labels={},
            )
            for n, key in enumerate(self._ids.actors(count))
        ]


def run(rounds: int, *, image_bytes: int, scratch: Path | None) -> Report:
    """Fork in catalogs and from histories of several lengths, in folders below `scratch`."""
    return {
        "bench": "fork",
        "conditions": conditions(),
        "by_catalog_versions": _each(CATALOGS, rounds, scratch, of_history=False),
        "by_history_tokens": _each(HISTORIES, rounds, scratch, of_history=True),
        "many": _many(image_bytes, scratch),
        "http": _over_http(rounds, scratch),
    }


def _each(
    sizes: Sequence[int], rounds: int, scratch: Path | None, *, of_history: bool
) -> dict[str, Any]:
    """Times for every size, and how many times that of the smallest the largest takes."""
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folders = {size: Path(name) / str(size) for size in sizes}
        for size, folder in folders.items():
            if not of_history:
                synthetic.build(folder, size)
        found = asyncio.run(_in_turns(folders, rounds, of_history=of_history))
    found["ratio"] = {
        f"{kind}_{rank}": _spread([found[str(size)][kind][rank] for size in sizes])
        for kind in ("ms", "cpu_ms")
        for rank in ("p10", "p50")
    }
    return found


def _spread(values: Sequence[float]) -> float:
    """How many times the least the most is."""
    return round(max(values) / min(values), 3)


async def _in_turns(folders: dict[int, Path], rounds: int, *, of_history: bool) -> dict[str, Any]:
    """One fork of each folder after another, so that a slow moment hits all of them alike."""
    catalogs = {size: await SqlCatalog.open(folder) for size, folder in folders.items()}
    floor = BareCommits(next(iter(folders.values())))
    children, samples = _Children(), {size: _Samples() for size in folders}
    try:
        origins = {}
        for size, catalog in catalogs.items():
            await catalog.claim("bench")
            catalog.use_builds({synthetic.MODEL: _BUILD})
            origins[size] = await _origin(catalog, size if of_history else 100, children)
        for n in range(-_WARM, rounds):
            for size, catalog in catalogs.items():
                await samples[size].take(catalog, origins[size], children, floor, n)
    finally:
        floor.close()
        for catalog in catalogs.values():
            await catalog.close()
    return {str(size): one.report() for size, one in samples.items()}


async def _origin(catalog: SqlCatalog, tokens: int, children: _Children) -> Origin:
    """A version behind a prompt of so many tokens."""
    made = await catalog.create(children.take()[0], [n % 256 for n in range(tokens)])
    return Origin(segment=made.segment, position=made.position, handle=f"{made.id}@{made.head}")


class _Samples:
    """Milliseconds of forks, of the processor within them, and of the commits beside them."""

    def __init__(self) -> None:
        self._ms: list[float] = []
        self._cpu: list[float] = []
        self._floor: list[float] = []

    async def take(
        self, catalog: SqlCatalog, origin: Origin, children: _Children, floor: BareCommits, n: int
    ) -> None:
        """One fork and one bare commit; those before the first that counts are warm-up."""
        new = children.take()
        cpu, begin = time.process_time(), time.perf_counter()
        await catalog.fork(new, origin)
        end, spent = time.perf_counter(), time.process_time() - cpu
        floor.commit()
        bare = time.perf_counter() - end
        if n >= 0:
            self._ms.append((end - begin) * 1e3)
            self._cpu.append(spent * 1e3)
            self._floor.append(bare * 1e3)

    def report(self) -> dict[str, Any]:
        """Quantiles of each."""
        ms, floor = quantiles(self._ms), quantiles(self._floor)
        return {
            "ms": ms,
            "cpu_ms": quantiles(self._cpu),
            "bare_commit_ms": floor,
            "over_floor_ms_p50": round(ms["p50"] - floor["p50"], 4),
        }


def _many(image_bytes: int, scratch: Path | None) -> dict[str, Any]:
    """A thousand forks of one version that has an image: as one operation, and one by one."""
    found: dict[str, Any] = {"forks": MANY, "image_bytes": image_bytes}
    for kind, size in (("one_call", MANY), ("one_by_one", 1)):
        with tempfile.TemporaryDirectory(dir=scratch) as name:
            found[kind] = asyncio.run(_fork_many(Path(name), size, image_bytes))
    return found


async def _fork_many(folder: Path, size: int, image_bytes: int) -> dict[str, Any]:
    """By a whole hypervisor over a real store; the guest alone costs nothing."""
    async with _standing(folder) as (visor, images):
        await visor.create(CreateActor(name="parent", prompt="Once upon a time. " * 20))
        await visor.snapshot(Snapshot(actor="parent", wait=True))
        before, kept = rows_bytes(folder), images.used_bytes
        begin, cpu = time.perf_counter(), time.process_time()
        for _ in range(MANY // size):
            await visor.fork(Fork(actor="parent", count=size))
        seconds, spent = time.perf_counter() - begin, time.process_time() - cpu
        added = rows_bytes(folder) - before
        written = images.used_bytes - kept
    return {
        "s": round(seconds, 4),
        "cpu_s": round(spent, 4),
        "bytes_of_images": written,
        "bytes_of_rows": added,
        "bytes_per_fork": round(added / MANY, 2),
        "rows_percent_of_one_image": round(100 * added / image_bytes, 2),
    }


@asynccontextmanager
async def _standing(folder: Path) -> AsyncIterator[tuple[Visor, SlabImages]]:
    """A hypervisor with the toy guest over a data folder; closed, not drained."""
    catalog = await SqlCatalog.open(folder)
    incarnation = await catalog.claim("bench")
    images = SlabImages.open(folder / IMAGES, (), incarnation=incarnation)
    visor = Visor(
        guests=[ToyGuest()],
        catalog=catalog,
        images=images,
        frames=HostTier,
        config=VisorConfig(host_bytes=1 << 20),
        clock=SystemClock(),
        meter=PrometheusMeter(),
    )
    await visor.start(incarnation)
    try:
        yield visor, images
    finally:
        await visor.close()
        await images.close()


def _over_http(rounds: int, scratch: Path | None) -> dict[str, Any]:
    """Forks of an actor at rest, through a server with a guest that costs nothing."""
    with tempfile.TemporaryDirectory(dir=scratch) as name, serving(Path(name), "toy") as server:
        wire = Wire(server.url)
        try:
            wire.post("/v1/actors", {"name": "parent", "prompt": "Once upon a time. " * 20})
            single, wall = "/v1/actors/parent/fork", []
            for n in range(-_WARM, rounds):
                begin = time.perf_counter()
                wire.post(single, {})
                if n >= 0:
                    wall.append((time.perf_counter() - begin) * 1e3)
            begin = time.perf_counter()
            wire.post(single, {"count": MANY})
            many = time.perf_counter() - begin
        finally:
            wire.close()
    return {"fork_ms": quantiles(wall), "fork_1000_s": round(many, 4)}
