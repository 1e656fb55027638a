"""Puts, frees and names images until it is killed; run by test_images_kill.py.

    python images_child.py FOLDER LINES OPERATIONS

forks one process per argument: each works in a folder of its own and kills itself (SIGKILL) before
the n-th line of the store's put path, or before or after its n-th file operation. The name of an
image is a line of a file that is synced: it stands for the commit of a catalog.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.layout import Fingerprints, Layout, StateFamily
from statevisor.store import extent_write
from statevisor.store.files import Files
from statevisor.store.images import SlabImages
from statevisor.store.slabs import SlabConfig

CONFIG = SlabConfig(slab_bytes=128 * 1024, step_bytes=32 * 1024, threads=2)
SIZES = (8, 20_000, 60_000, 300_000)  # the last needs a slab of its own, and no page cache
extent_write.PIECE_BYTES = SIZES[-1]  # type: ignore[misc]  # and is hashed by another thread
WATCHED = (
    "images.py",
    "extent_io.py",
    "extent_write.py",
    "slabs.py",
    "room.py",
    "files.py",
    "group_sync.py",
)


def make_meta(size: int) -> ImageMeta:
    layout = Layout(families=(StateFamily(name="wkv", shape=(1, size), dtype="U8"),))
    prints = Fingerprints(layout=layout.fingerprint, weights="w", build="b")
    return ImageMeta(layout=layout, fingerprints=prints, position=1, absorbed=0, pending=(7,))


def make_row(k: int, size: int) -> bytes:
    return random.Random(k).randbytes(size)


def on_a_page(row: bytes) -> memoryview:
    """The row in memory that a disk can reach by itself."""
    memory = memoryview(mmap.mmap(-1, len(row)))
    memory[:] = row
    return memory


class Names:
    """What a catalog would hold."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def commit(self, **record: Any) -> None:
        os.write(self._fd, json.dumps(record).encode() + b"\n")
        os.fdatasync(self._fd)


async def work(folder: Path, files: Files) -> None:
    """A few rounds that meet every case: growth, groups, reuse of freed room, a file's end."""
    names = Names(folder / "names")
    images = SlabImages.open(folder / "slabs", (), incarnation=1, config=CONFIG, files=files)
    held = []
    for k in range(0, 12, 3):
        group = [(j, SIZES[j % len(SIZES)]) for j in range(k, k + 3)]
        refs = await asyncio.gather(
            *(images.put(on_a_page(make_row(j, size)), make_meta(size)) for j, size in group)
        )
        for (j, size), ref in zip(group, refs, strict=True):
            names.commit(k=j, size=size, ref=asdict(ref))
            held.append((j, ref))
        if k:
            j, ref = held.pop(0)
            names.commit(k=j, gone=True)
            images.free(ref)
    await images.close()
    names.commit(done=True)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Countdown:
    """Kills the process at the n-th call."""

    def __init__(self, n: int) -> None:
        self._left = n
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            if not self._left:
                die()


class KillingFiles(Files):
    """Counts before and after every operation."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name.startswith("_"):
            return method
        tick = self._tick

        def counted(*args: Any) -> Any:
            tick()
            result = method(*args)
            tick()
            return result

        return counted


def trace_lines(tick: Callable[[], None]) -> None:
    """Call `tick` before every line of the watched files, on every thread."""

    def local(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            tick()
        return local

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        path = Path(frame.f_code.co_filename)
        return local if path.name in WATCHED and path.parent.name == "store" else None

    threading.settrace(enter)
    sys.settrace(enter)


def run(folder: Path, what: str, n: int) -> None:
    folder.mkdir()
    tick = Countdown(n)
    if what == "line":
        trace_lines(tick)
    asyncio.run(work(folder, KillingFiles(tick) if what == "operation" else Files()))


def main() -> None:
    base, lines, operations = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
    for what, points in (("line", lines), ("operation", operations)):
        for n in points:
            child = os.fork()
            if not child:
                run(base / f"{what}-{n}", what, n)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            if not killed and status != 0:
                sys.exit(f"{what} {n}: status {status}")


if __name__ == "__main__":
    main()
