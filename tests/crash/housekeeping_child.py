"""A process that keeps house in a data folder and is killed in the middle of it.

Arguments: folder, what (gc | backup | tar | fsck), and at which call it dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.commands import (
    Backup,
    CreateActor,
    DeleteActor,
    Fsck,
    Gc,
    Generate,
    Hibernate,
    Mutate,
)
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.visor import Visor
from statevisor.store import backup, rebuild, writer
from statevisor.store.backup import IMAGES, FolderArchive
from statevisor.store.catalog import SqlCatalog
from statevisor.store.fsck import check_folder
from statevisor.store.host import HostTier
from statevisor.store.images import SlabImages
from statevisor.store.slabs import SlabConfig

SLABS = SlabConfig(slab_bytes=1 << 18, step_bytes=1 << 16, threads=2)


class WallClock:
    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()


class NoMeter:
    def observe(self, name: str, value: float, **labels: str) -> None: ...

    def count(self, name: str, n: float = 1, **labels: str) -> None: ...


@asynccontextmanager
async def running(data: Path) -> AsyncIterator[tuple[Visor, SlabImages, SqlCatalog]]:
    catalog = await SqlCatalog.open(data)
    incarnation = await catalog.claim("test")
    live = await catalog.live_images()
    images = SlabImages.open(data / IMAGES, live, incarnation=incarnation, config=SLABS)
    visor = Visor(
        guests=[ToyGuest(slots=4)],
        catalog=catalog,
        images=images,
        frames=lambda memory, row: HostTier(memory, row, checksum=zlib.crc32),
        config=VisorConfig(host_bytes=160),
        clock=WallClock(),
        meter=NoMeter(),
        archive=FolderArchive(data, images, slab_bytes=1 << 14),
    )
    visor._housekeeping._collector._dense = 8
    await visor.start(incarnation)
    try:
        yield visor, images, catalog
    finally:
        await visor.close()
        await images.close()


async def say(visor: Visor, name: str) -> tuple[int, ...]:
    stream = await visor.generate(Generate(actor=name, max_tokens=5, ignore_eos=True))
    return (await stream.result()).token_ids


async def populate(visor: Visor) -> None:
    """Living actors with more images than they need, and deleted ones."""
    for n in range(4):
        name = f"actor-{n}"
        await visor.create(CreateActor(name=name, prompt=f"hello {n}", seed=n))
        for _ in range(5):
            await say(visor, name)
            await visor.hibernate(Hibernate(actor=name))
        rule = Mutation(rule="decay", params={"alpha": 0.5})
        await visor.mutate(Mutate(actor=name, mutation=rule))
    for n in (0, 1):
        await visor.delete(DeleteActor(actor=f"actor-{n}"))


def die_at(point: str) -> None:
    """Let the process be killed before or after the n-th call of a name: `CALL:N:before`."""
    name, number, side = point.split(":")
    calls = [0]

    def killed(now: str) -> None:
        if calls[0] == int(number) and now == side:
            os.kill(os.getpid(), signal.SIGKILL)

    for owner in MARKED[name]:
        setattr(owner, name, _watched(getattr(owner, name), calls, killed))


def _watched(inner: Any, calls: list[int], killed: Any) -> Any:
    @wraps(inner)
    def call(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        killed("before")
        result = inner(*args, **kwargs)
        killed("after")
        return result

    return call


#: Calls that change something, and whose they are.
MARKED: dict[str, tuple[Any, ...]] = {
    "finish": (writer, rebuild),
    "free": (SlabImages,),
    "_put": (FolderArchive,),
    "copy": (backup,),
    "_relocate": (backup,),
    "add": (backup._Folder, backup._Tar),
    "publish": (backup._Folder, backup._Tar),
    "migrate": (rebuild,),
    "rename": (Path,),
}


async def work(data: Path, what: str, point: str) -> None:
    async with running(data) as (visor, _, _):
        die_at(point)
        if what == "gc":
            for _ in range(2):
                await visor.gc(Gc(grace_s=0))
        elif what == "fsck":
            await visor.fsck(Fsck(repair=True))
        else:
            name = "copy" if what == "backup" else "copy.tar"
            await visor.backup(Backup(target=str(data.with_name(name))))


if __name__ == "__main__":
    folder, task, at = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    if task == "rebuild":
        die_at(at)
        check_folder(folder, repair=True, model="toy")
    else:
        asyncio.run(work(folder, task, at))
