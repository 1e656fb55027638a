"""From opening a data folder to taking commands, and what the actors in it cost in memory.

Everything but the model: the guest is the toy. Each start is one of a process of its own, so that
memory is that of this start. What an actor costs is the growth beyond a folder of few.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
import zlib
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from statevisor.api.bench.report import Report, conditions
from statevisor.api.clock import SystemClock
from statevisor.api.metrics import PrometheusMeter
from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.errors import StatevisorError
from statevisor.hypervisor.visor import Visor
from statevisor.store import populous
from statevisor.store.backup import IMAGES
from statevisor.store.catalog import SqlCatalog
from statevisor.store.host import HostTier
from statevisor.store.images import SlabImages

FEW: Final = 100
_PAGE = 200


def run(actors: int, *, rounds: int, scratch: Path | None) -> Report:
    """Start on folders of few and of many actors, in folders below `scratch`."""
    starts = {}
    for count in (FEW, actors):
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            guest = ToyGuest()
            populous.build(Path(folder), count, model=guest.name, prints=guest.fingerprints)
            found = [_in_a_process(Path(folder)) for _ in range(rounds)]
            starts[count] = sorted(found, key=lambda one: one["ready_s"])[len(found) // 2]
    grown = {
        name: round((starts[actors][name] - starts[FEW][name]) / (actors - FEW), 1)
        for name in ("rss_bytes", "peak_bytes")
    }
    return {
        "bench": "start",
        "conditions": conditions(),
        "actors": actors,
        "rounds": rounds,
        "few": {"actors": FEW, **starts[FEW]},
        "many": {"actors": actors, **starts[actors]},
        "bytes_per_actor": grown,
    }


def _in_a_process(folder: Path) -> dict[str, Any]:
    spawn = multiprocessing.get_context("spawn")
    mine, its = spawn.Pipe()
    child = spawn.Process(target=_child, args=(folder, its))
    child.start()
    its.close()
    try:
        found: dict[str, Any] = mine.recv()
    except EOFError:
        raise StatevisorError("a start that was to be measured failed") from None
    finally:
        mine.close()
        child.join()
    return found


def _child(folder: Path, pipe: Connection) -> None:
    pipe.send(asyncio.run(_start(folder)))


async def _start(folder: Path) -> dict[str, Any]:
    """One start, part by part; the median of its rounds is told."""
    guest, before = ToyGuest(slots=64), _memory()
    times = [time.perf_counter()]

    def mark() -> None:
        times.append(time.perf_counter())

    catalog = await SqlCatalog.open(folder)
    mark()
    incarnation = await catalog.claim("bench")
    mark()
    live = await catalog.live_extents()
    mark()
    images = await asyncio.to_thread(
        SlabImages.open, folder / IMAGES, live, incarnation=incarnation
    )
    del live
    mark()
    visor = Visor(
        guests=[guest],
        catalog=catalog,
        images=images,
        frames=lambda memory, row: HostTier(memory, row, checksum=zlib.crc32),
        config=VisorConfig(host_bytes=80 * 16),
        clock=SystemClock(),
        meter=PrometheusMeter(),
    )
    await visor.start(incarnation)
    mark()
    after = _memory()
    await visor.actors(limit=_PAGE)
    mark()
    await visor.close()
    await images.close()
    names = ("open", "claim", "images_listed", "slabs_open", "visor_start", "first_page")
    parts = {
        f"{name}_s": round(end - begin, 4)
        for name, begin, end in zip(names, times, times[1:], strict=False)
    }
    return {
        "ready_s": round(times[5] - times[0], 4),
        **parts,
        "rss_bytes": after["VmRSS"] - before["VmRSS"],
        "peak_bytes": after["VmHWM"] - before["VmRSS"],
    }


def _memory() -> dict[str, int]:
    """What the kernel says of this process, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    pairs = [line.split(":") for line in lines if line.startswith(("VmRSS", "VmHWM"))]
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}
