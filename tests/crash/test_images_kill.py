"""kill -9 between any two lines of a put, and a power failure between any two operations.

After either, every image that was named reads back, every other byte is free. The mutants at the
end take one guard out each and are caught by the same check.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from statevisor.hypervisor.errors import ImageCorrupt
from statevisor.hypervisor.records import ImageRef
from statevisor.store import extent_io
from statevisor.store.files import Files
from statevisor.store.group_sync import GroupSync
from statevisor.store.images import SlabImages

CHILD = Path(__file__).with_name("images_child.py")
SECTOR = 512

spec = importlib.util.spec_from_file_location("images_child", CHILD)
assert spec is not None
assert spec.loader is not None
child = importlib.util.module_from_spec(spec)
spec.loader.exec_module(child)

pytestmark = pytest.mark.crash


def named(folder):
    """What the stand-in of the catalog holds: k -> (size, ref); and whether the work ended."""
    held, done = {}, False
    path = folder / "names"
    for line in path.read_bytes().split(b"\n") if path.exists() else []:
        if not line.endswith(b"}"):
            continue  # torn: never committed
        record = json.loads(line)
        if record.get("done"):
            done = True
        elif record.get("gone"):
            del held[record["k"]]
        else:
            held[record["k"]] = (record["size"], ImageRef(**record["ref"]))
    return held, done


async def verify(folder):
    """Open again and read everything: how many images are whole, lost or wrong."""
    held, done = named(folder)
    images = SlabImages.open(
        folder / "slabs", [ref for _, ref in held.values()], incarnation=2, config=child.CONFIG
    )
    count = Counter(done=int(done), named=len(held))
    for k, (size, ref) in held.items():
        out = memoryview(bytearray(size))
        try:
            await images.get(ref, out)
        except ImageCorrupt:
            count["lost"] += 1
        else:
            count["whole" if out == child.make_row(k, size) else "wrong"] += 1
    images.check()
    if not count["lost"]:
        assert images.used_bytes == sum(ref.length for _, ref in held.values())
    rows = [memoryview(child.make_row(100 + k, size)) for k, size in enumerate(child.SIZES)]
    refs = [await images.put(row, child.make_meta(len(row))) for row in rows]
    for row, ref in zip(rows, refs, strict=True):
        out = memoryview(bytearray(len(row)))
        await images.get(ref, out)
        assert out == row, "what is written after the crash is whole"
    await images.close()
    return count


# -- kill -9 ---------------------------------------------------------------------------------------
def test_a_kill_loses_nothing_that_was_named(tmp_path):
    lines = [*range(130, 3000, 127)]
    operations = [*range(1, 190, 7)]
    result = subprocess.run(
        [sys.executable, CHILD, tmp_path, json.dumps(lines), json.dumps(operations)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    total, cut = Counter(), 0
    for folder in sorted(tmp_path.iterdir()):
        count = asyncio.run(verify(folder))
        assert count["lost"] == count["wrong"] == 0, (folder.name, count)
        assert count["whole"] == count["named"]
        cut += not count["done"]
        total += count
    assert cut >= 35, f"only {cut} of {len(lines) + len(operations)} runs were cut short"
    assert total["whole"] >= 80, total


# -- power failure ---------------------------------------------------------------------------------
class PowerLoss(Exception):
    """The machine is off: no operation after this one happens."""


class PowerFiles(Files):
    """Files whose unsynced sectors and names may or may not survive a power failure."""

    def __init__(self, trash, at=None):
        self._left = at
        self._lock = threading.RLock()
        self._paths = {}  # descriptor -> path
        self._before = {}  # path -> {sector: bytes before}, since the last sync
        self._created, self._deleted = [], []  # names not synced yet
        self._trash = trash
        self._locks = []
        self.operations = 0

    def _tick(self):
        self.operations += 1
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise PowerLoss

    def create(self, path):
        with self._lock:
            self._tick()
            fd = super().create(path)
            self._paths[fd], self._before[path] = path, {}
            self._created.append(path)
            return fd

    def open(self, path):
        with self._lock:
            fd = super().open(path)
            self._paths[fd], self._before[path] = path, {}
            return fd

    def open_direct(self, path):
        with self._lock:  # through the page cache: what counts is what a sync has covered
            fd = super().open(path)
            self._paths[fd] = path
            return fd

    def lock(self, folder):
        self._locks.append(super().lock(folder))
        return self._locks[-1]

    def write(self, fd, buffers, offset):
        with self._lock:
            self._tick()
            size = sum(map(len, buffers))
            before = self._before[self._paths[fd]]
            for sector in range(offset // SECTOR, -(-(offset + size) // SECTOR)):
                if sector not in before:
                    before[sector] = os.pread(fd, SECTOR, sector * SECTOR)
            super().write(fd, buffers, offset)

    def sync(self, fd):
        with self._lock:
            self._tick()
            self._before[self._paths[fd]].clear()

    def sync_folder(self, folder):
        with self._lock:
            self._tick()
            self._created = [path for path in self._created if path.parent != folder]
            self._deleted = [pair for pair in self._deleted if pair[0].parent != folder]

    def unlink(self, path):
        with self._lock:
            self._tick()
            kept = self._trash / f"{len(self._deleted)}-{path.name}"
            os.rename(path, kept)
            self._deleted.append((path, kept))

    def close(self, fd):
        with self._lock:
            if fd in self._locks:
                self._locks.remove(fd)
            elif self._paths.pop(fd, None) is None:
                # A thread outlived its loop and the power: the number may be another file's now.
                return
            super().close(fd)

    def fail(self, rng):
        """Give back what was not synced, each sector and name by chance."""
        self._left = -1
        for fd in [*self._paths, *self._locks]:
            self.close(fd)
        for path, before in self._before.items():
            if not path.exists():
                continue
            with path.open("r+b") as file:
                for sector, old in before.items():
                    if rng.random() < 0.5:
                        file.seek(sector * SECTOR)
                        file.write(old.ljust(SECTOR, b"\0"))
        for path in self._created:
            if path.exists() and rng.random() < 0.5:
                path.unlink()
        for path, kept in self._deleted:
            if rng.random() < 0.5:
                os.rename(kept, path)


def fail_power(base, n, files=PowerFiles):
    """Run the work, cut the power at operation n, and count what is left of the named images."""
    folder, trash = base / f"at-{n}", base / f"trash-{n}"
    folder.mkdir()
    trash.mkdir()
    disk = files(trash, n)
    with contextlib.suppress(PowerLoss):
        asyncio.run(child.work(folder, disk))
    disk.fail(random.Random(n))
    return asyncio.run(verify(folder))


@pytest.fixture(scope="module")
def operations(tmp_path_factory):
    """How many operations the whole work needs, about: growth runs beside it."""
    base = tmp_path_factory.mktemp("whole")
    disk = PowerFiles(base)
    asyncio.run(child.work(base, disk))
    return disk.operations


def test_a_power_failure_loses_nothing_that_was_named(tmp_path, operations):
    total, cut = Counter(), 0
    for n in range(0, operations, 2):
        count = fail_power(tmp_path, n)
        assert count["lost"] == count["wrong"] == 0, (n, count)
        cut += not count["done"]
        total += count
    assert cut > operations // 4
    assert total["whole"] > 50


def test_a_thread_that_outlives_the_power_closes_no_other_file(tmp_path):
    """A cancelled loop leaves a thread that removes a slab, while the next life opens its files."""
    disk = PowerFiles(tmp_path)
    fd = disk.create(tmp_path / "00000001.slab")
    disk.fail(random.Random(1))
    other = os.open(CHILD, os.O_RDONLY)
    assert other == fd, "the test needs the number to be given out again"
    disk.close(fd)
    os.fstat(other)
    os.close(other)


# -- mutants: one guard out, and the check above must see it ---------------------------------------
def losses(base, operations, files=PowerFiles, step=5):
    total = Counter()
    for n in range(operations // 4, operations, step):
        total += fail_power(base, n, files)
    return total


def test_naming_before_the_sync_is_caught(tmp_path, operations, monkeypatch):
    monkeypatch.setattr(GroupSync, "lead", lambda group: True)
    total = losses(tmp_path, operations)
    assert total["lost"] > 0
    assert total["wrong"] == 0, "torn bytes were served"


def test_a_file_whose_name_was_not_synced_is_caught(tmp_path, operations):
    class Nameless(PowerFiles):
        def sync_folder(self, folder):
            self._tick()

    total = losses(tmp_path, operations, Nameless)
    assert total["lost"] > 0
    assert total["wrong"] == 0


def test_serving_without_the_checks_is_caught(tmp_path, operations, monkeypatch):
    """Torn images and no check: what comes back is wrong, and is seen to be."""

    def unchecked(files, fd, header, parts, identity):
        files.read(fd, parts, header.ref.offset + extent_io.header_bytes(header.ref.nbytes))

    monkeypatch.setattr(GroupSync, "lead", lambda group: True)
    monkeypatch.setattr(extent_io, "_read_image", unchecked)
    assert losses(tmp_path, operations, step=1)["wrong"] > 0
