"""Hibernate and resume on the disk: put and get against raw input and output of the same bytes.

    python tests/bench/images.py [FOLDER]

Prints one JSON object. Raw writes go to a file that was written before, as the slabs are; "cold"
drops the file from the page cache first; the raw cold read uses O_DIRECT.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.layout import Fingerprints, Layout, StateFamily
from statevisor.hypervisor.records import ImageRef
from statevisor.store.images import SlabImages

MIB = 1 << 20
ROUNDS = 21
SPREAD = 4  # extents and raw places taken in turn
GROUP = 8  # hibernated at once


def meta(row_bytes: int) -> ImageMeta:
    """An image of one float32 family of that size."""
    family = StateFamily(name="wkv", shape=(1, row_bytes // 4), dtype="F32")
    layout = Layout(families=(family,))
    prints = Fingerprints(layout=layout.fingerprint, weights="bench", build="bench")
    return ImageMeta(layout=layout, fingerprints=prints, position=2, absorbed=1, pending=(7,))


class Timed:
    """Milliseconds of several actions, taken in turn so that a slow minute hits all of them."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    async def run(self, name: str, action: Callable[[int], Awaitable[object]], k: int) -> None:
        start = time.perf_counter()
        await action(k)
        self.times.setdefault(name, []).append((time.perf_counter() - start) * 1e3)

    def report(self, of: Callable[[list[float]], float]) -> dict[str, float]:
        """One figure per action and the ratios to raw; `of` is the median or, on a busy machine,
        the minimum."""
        ms = {name: of(times) for name, times in self.times.items()}
        ratios = {
            "put": ms["put"] / ms["raw_write_fdatasync"],
            "put_8_at_once": ms["put_8_at_once"] / ms["raw_write_8_fdatasync"],
            "get_warm": ms["get_warm"] / ms["raw_read_warm"],
            "get_cold_to_direct": ms["get_cold"] / ms["raw_read_direct"],
            "get_cold_to_plain": ms["get_cold"] / ms["raw_read_cold"],
        }
        return {f"{name}_ms": round(value, 2) for name, value in ms.items()} | {
            f"{name}_ratio": round(value, 2) for name, value in ratios.items()
        }


class Raw:
    """The same bytes without the store."""

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        self.data = os.urandom(size)
        self.out = mmap.mmap(-1, size)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.pwrite(self.fd, bytes(size * max(SPREAD, GROUP)), 0)
        os.fsync(self.fd)
        try:
            self.direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            self.direct = os.open(path, os.O_RDONLY)

    async def write(self, k: int) -> None:
        os.pwrite(self.fd, self.data, k % SPREAD * self.size)
        os.fdatasync(self.fd)

    async def write_group(self, k: int) -> None:
        for place in range(GROUP):
            os.pwrite(self.fd, self.data, place * self.size)
        os.fdatasync(self.fd)

    async def read(self, k: int) -> None:
        os.preadv(self.fd, [self.out], k % SPREAD * self.size)

    async def read_direct(self, k: int) -> None:
        os.preadv(self.direct, [self.out], k % SPREAD * self.size)


def drop(paths: list[Path]) -> None:
    """Forget the page cache of some files."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


async def measure(folder: Path, row_bytes: int) -> dict[str, dict[str, float]]:
    """All figures of one size, in ms and as ratios to raw."""
    images = SlabImages.open(folder / "slabs", (), incarnation=1)
    row, out = memoryview(bytearray(os.urandom(row_bytes))), memoryview(bytearray(row_bytes))
    about = meta(row_bytes)
    refs: list[ImageRef] = []

    async def put(k: int) -> None:
        if len(refs) == SPREAD:
            images.free(refs.pop(0))
        refs.append(await images.put(row, about))

    async def put_group(k: int) -> None:
        for ref in await asyncio.gather(*(images.put(row, about) for _ in range(GROUP))):
            images.free(ref)

    async def get(k: int) -> None:
        await images.get(refs[k % SPREAD], out)

    pins: dict[int, ImageRef] = {}  # one image stays in each slab, so that no file comes or goes
    for ref in await asyncio.gather(*(images.put(row, about) for _ in range(3 * GROUP))):
        if pins.setdefault(ref.slab, ref) is not ref:
            images.free(ref)
    for k in range(SPREAD):
        await put(k)
        await put_group(k)
    raw, timed = Raw(folder / "raw", refs[0].nbytes + 4096), Timed()
    for k in range(ROUNDS):
        await timed.run("put", put, k)
        await timed.run("raw_write_fdatasync", raw.write, k)
        await timed.run("put_8_at_once", put_group, k)
        await timed.run("raw_write_8_fdatasync", raw.write_group, k)
        await timed.run("get_warm", get, k)
        await timed.run("raw_read_warm", raw.read, k)
        drop([folder / "raw", *(folder / "slabs").iterdir()])
        await timed.run("get_cold", get, k)
        await timed.run("raw_read_direct", raw.read_direct, k)
        await timed.run("raw_read_cold", raw.read, k)
    await images.close()
    return {"p50": timed.report(statistics.median), "best": timed.report(min)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default=tempfile.gettempdir())
    base = parser.parse_args().folder
    report = {}
    for name, size in (("8 MiB", 8 * MIB), ("0.5 MiB", MIB // 2)):
        with tempfile.TemporaryDirectory(dir=base) as folder:
            report[name] = asyncio.run(measure(Path(folder), size))
    print(json.dumps(report, indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
