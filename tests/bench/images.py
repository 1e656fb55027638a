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

from statevisor.hypervisor.layout import Fingerprints, Layout, StateFamily
from statevisor.hypervisor.ports import ImageMeta
from statevisor.hypervisor.records import ImageRef
from statevisor.store.images import SlabImages
from statevisor.store.slabs import SlabConfig

MIB = 1 << 20
ROUNDS = 21
SPREAD = 4  # extents and raw places taken in turn


def meta(row_bytes: int) -> ImageMeta:
    """An image of one float32 family of that size."""
    family = StateFamily(name="wkv", shape=(1, row_bytes // 4), dtype="F32")
    layout = Layout(families=(family,))
    prints = Fingerprints(layout=layout.fingerprint, weights="bench", build="bench")
    return ImageMeta(layout=layout, fingerprints=prints, position=2, absorbed=1, pending=(7,))


async def p50(action: Callable[[int], Awaitable[object]], before: Callable[[], None]) -> float:
    """Median milliseconds of an action."""
    times = []
    for k in range(ROUNDS):
        before()
        start = time.perf_counter()
        await action(k)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


class Raw:
    """The same bytes without the store."""

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        self.data = os.urandom(size)
        self.out = mmap.mmap(-1, size)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.pwrite(self.fd, bytes(size * SPREAD), 0)
        os.fsync(self.fd)
        try:
            self.direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            self.direct = os.open(path, os.O_RDONLY)

    async def write(self, k: int) -> None:
        os.pwrite(self.fd, self.data, k % SPREAD * self.size)
        os.fdatasync(self.fd)

    async def read(self, k: int) -> None:
        os.preadv(self.fd, [self.out], k % SPREAD * self.size)

    async def read_direct(self, k: int) -> None:
        os.preadv(self.direct, [self.out], k % SPREAD * self.size)


def dropper(paths: list[Path]) -> Callable[[], None]:
    """Forget the page cache of some files."""

    def drop() -> None:
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    return drop


def nothing() -> None:
    """No preparation."""


async def measure(folder: Path, row_bytes: int) -> dict[str, float]:
    """All figures of one size, in ms and as ratios to raw."""
    images = SlabImages.open(folder / "slabs", (), incarnation=1, config=SlabConfig())
    row, out = memoryview(bytearray(os.urandom(row_bytes))), memoryview(bytearray(row_bytes))
    about = meta(row_bytes)
    refs: list[ImageRef] = []

    async def put(k: int) -> None:
        if len(refs) == SPREAD:
            images.free(refs.pop(0))
        refs.append(await images.put(row, about))

    async def put_group(k: int) -> None:
        for ref in await asyncio.gather(*(images.put(row, about) for _ in range(8))):
            images.free(ref)

    async def get(k: int) -> None:
        await images.get(refs[k % SPREAD], out)

    await p50(put, nothing)  # the first ones find the files new
    raw = Raw(folder / "raw", refs[0].nbytes + 4096)
    slabs = sorted((folder / "slabs").iterdir())
    result = {
        "put_ms": await p50(put, nothing),
        "raw_write_fdatasync_ms": await p50(raw.write, nothing),
        "put_8_at_once_ms_each": await p50(put_group, nothing) / 8,
        "get_warm_ms": await p50(get, nothing),
        "raw_read_warm_ms": await p50(raw.read, nothing),
        "get_cold_ms": await p50(get, dropper(slabs)),
        "raw_read_direct_ms": await p50(raw.read_direct, nothing),
        "raw_read_cold_ms": await p50(raw.read, dropper([folder / "raw"])),
    }
    result["put_ratio"] = result["put_ms"] / result["raw_write_fdatasync_ms"]
    result["get_cold_ratio"] = result["get_cold_ms"] / result["raw_read_direct_ms"]
    result["get_warm_ratio"] = result["get_warm_ms"] / result["raw_read_warm_ms"]
    await images.close()
    return {key: round(value, 2) for key, value in result.items()}


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
