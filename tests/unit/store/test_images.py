"""SlabImages: order of effects, shared syncs, failures of the disk, cancelled callers."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from statevisor.hypervisor.errors import (
    ImageCorrupt,
    IncompatibleImage,
    QuotaExceeded,
    StatevisorError,
    Unavailable,
)
from statevisor.hypervisor.layout import StateFamily
from statevisor.store.files import Files
from statevisor.store.images import SlabImages
from statevisor.store.slabs import SlabConfig

MIB = 1 << 20
CONFIG = SlabConfig(slab_bytes=256 * 1024, step_bytes=64 * 1024, threads=2)


class Watched(Files):
    """Real files that remember what was done, and can be told to fail or to wait."""

    def __init__(self):
        self.done = []
        self.faults = {}
        self.gates = {}
        self.reached = Counter()
        self.loop = asyncio.get_running_loop()
        self.news = asyncio.Event()

    async def until(self, condition):
        """Let the threads go on until something has happened."""
        async with asyncio.timeout(20):
            while not condition():
                self.news.clear()
                await self.news.wait()

    def _step(self, what, *details):
        self.done.append((what, *details))
        self.reached[what] += 1
        self.loop.call_soon_threadsafe(self.news.set)
        if gate := self.gates.get(what):
            assert gate.wait(20), "the test forgot its gate"
        if fault := self.faults.get(what):
            raise fault

    def create(self, path):
        self._step("create", path.name)
        return super().create(path)

    def write(self, fd, buffers, offset):
        zeros = len(buffers) == 1 and not any(buffers[0])
        self._step("zeros" if zeros else "write", offset, sum(map(len, buffers)))
        super().write(fd, buffers, offset)

    def read(self, fd, buffers, offset):
        self._step("read", offset)
        return super().read(fd, buffers, offset)

    def sync(self, fd):
        self._step("sync")
        super().sync(fd)

    def sync_folder(self, folder):
        self._step("sync_folder")
        super().sync_folder(folder)

    def unlink(self, path):
        self._step("unlink", path.name)
        super().unlink(path)


class Stopped(Exception):
    """Stands for the end of the process."""


class Stop:
    def __init__(self):
        self.reasons = []

    def __call__(self, reason):
        self.reasons.append(reason)
        raise Stopped(reason)


@pytest.fixture
async def files():
    return Watched()


@pytest.fixture
def stop():
    return Stop()


@pytest.fixture
async def images(tmp_path, files, stop):
    opened = SlabImages.open(
        tmp_path / "slabs", (), incarnation=1, config=CONFIG, files=files, on_fsync_error=stop
    )
    yield opened
    for gate in files.gates.values():
        gate.set()
    files.faults.clear()
    await opened.close()


@pytest.fixture
def meta(make_meta):
    return make_meta()


async def ready(images, meta, row):
    """One image put and the background done, so that what follows is seen alone."""
    ref = await images.put(row, meta)
    await images._room.close()
    return ref


# -- the order of effects --------------------------------------------------------------------------
async def test_bytes_then_header_then_sync(images, files, meta, make_row):
    row = make_row(meta)
    await ready(images, meta, row)
    files.done.clear()
    ref = await images.put(row, meta)
    await images._room.close()
    mine = [step for step in files.done if step[0] in ("write", "sync")]
    assert mine == [
        ("write", ref.offset + 8192, ref.length - 8192),  # the row, with its padding
        ("write", ref.offset, 8192),  # the extent's header and the image's
        ("sync",),
    ]


async def test_a_new_file_is_durable_before_it_is_used(images, files, meta, make_row):
    assert [step[0] for step in files.done] == ["sync_folder"]  # the folder itself, at open
    files.done.clear()
    await images.put(make_row(meta), meta)
    names = [step[0] for step in files.done]
    assert names[:4] == ["create", "zeros", "sync", "sync_folder"]
    assert names.index("write") > names.index("sync_folder")


async def test_it_returns_only_when_durable(images, files, meta, make_row):
    await ready(images, meta, make_row(meta))
    files.gates["sync"] = threading.Event()
    syncs = files.reached["sync"]
    put = asyncio.ensure_future(images.put(make_row(meta), meta))
    await files.until(lambda: files.reached["sync"] > syncs)
    await asyncio.sleep(0)
    assert not put.done()
    files.gates["sync"].set()
    await put


async def test_puts_share_a_sync(images, files, meta, make_row):
    await ready(images, meta, make_row(meta))
    files.gates["sync"] = threading.Event()
    syncs, writes = files.reached["sync"], files.reached["write"]
    first = asyncio.ensure_future(images.put(make_row(meta), meta))
    await files.until(lambda: files.reached["sync"] > syncs)
    others = [asyncio.ensure_future(images.put(make_row(meta, k), meta)) for k in range(5)]
    await files.until(lambda: files.reached["write"] == writes + 12)
    files.gates["sync"].set()
    refs = await asyncio.gather(first, *others)
    await images._room.close()
    assert len({ref.offset for ref in refs}) == 6
    grown = sum(step[0] == "zeros" for step in files.done)  # each growth has a sync of its own
    puts = 1 + 2  # the one before the gate, then the first alone and the five together
    assert files.reached["sync"] - grown <= puts + 1
    assert files.reached["sync"] - grown >= puts
    images.check()


async def test_room_is_made_ahead_and_then_nobody_waits_for_it(images, files, make_meta, make_row):
    meta = make_meta(StateFamily(name="wkv", shape=(1, 12_000), dtype="F32"))  # 48 KB
    await ready(images, meta, make_row(meta))
    for k in range(3):
        files.gates["zeros"] = threading.Event()  # no growth can finish now
        await asyncio.wait_for(images.put(make_row(meta, k), meta), 20)
        files.gates.pop("zeros").set()
        await images._room.close()
    images.check()


# -- what comes back -------------------------------------------------------------------------------
async def test_what_was_put_does_not_change_with_the_state(images, meta, make_row):
    row = make_row(meta)
    ref = await images.put(row, meta)
    before = await images.export(ref)
    row[:] = bytes(len(row))
    out = memoryview(bytearray(len(row)))
    await images.get(ref, out)
    out[:] = bytes(len(out))
    assert await images.export(ref) == before


@pytest.mark.parametrize("size", [8, 4096, MIB - 4096, MIB, 2 * MIB + 24])
async def test_sizes_around_the_boundaries_come_back(images, make_meta, make_row, size):
    meta = make_meta(StateFamily(name="wkv", shape=(1, size), dtype="U8"))
    row, out = make_row(meta), memoryview(bytearray(size))
    ref = await images.put(row, meta)
    assert await images.get(ref, out) == meta
    assert out == row
    assert (await images.export(ref))[-size:] == bytes(row)


async def test_a_row_that_is_not_of_the_layout_is_not_written(images, files, meta, make_row):
    with pytest.raises(ValueError, match="bytes, the layout has"):
        await images.put(make_row(meta)[:-8], meta)
    assert files.reached["create"] == files.reached["write"] == 0


async def test_a_hole_is_never_served(images, meta, make_row):
    """Room that was written with zeros, room that was freed and room that never was."""
    ref = await ready(images, meta, make_row(meta))
    slab = images._slabs.find(ref.slab)
    place = images._slabs.take(ref.length)  # taken, never written
    hole = replace(ref, offset=place.offset)
    with pytest.raises(ImageCorrupt, match=f"slab 1, offset {place.offset}: no extent header"):
        await images.export(hole)
    images._slabs.give(place)
    for missing in (hole, replace(ref, offset=slab.room.size), replace(ref, slab=99)):
        with pytest.raises(ImageCorrupt, match=r"no image is kept there|file is missing"):
            await images.export(missing)
    images.free(ref)
    with pytest.raises(ImageCorrupt, match="no image is kept there"):
        await images.get(ref, memoryview(bytearray(meta.layout.row_bytes)))


@pytest.mark.parametrize("room", [0, 1, 8, 64 + 4096, 1 << 20])
async def test_a_buffer_of_another_size_is_refused(images, meta, make_row, room):
    ref = await images.put(make_row(meta), meta)
    with pytest.raises(IncompatibleImage, match=f"slab 1, offset 0: .* row of {room} bytes"):
        await images.get(ref, memoryview(bytearray(room)))


async def test_a_row_a_page_shorter_with_a_page_of_header_more_is_refused(
    images, make_meta, make_row
):
    meta = make_meta(StateFamily(name="wkv", shape=(2, 4096), dtype="U8"))
    ref = await images.put(make_row(meta), meta)
    with pytest.raises(IncompatibleImage, match="row of 4096 bytes"):
        await images.get(ref, memoryview(bytearray(4096)))


async def test_a_sampled_bit_anywhere_on_the_disk_is_found(images, tmp_path, meta, make_row):
    ref = await images.put(make_row(meta), meta)
    out = memoryview(bytearray(meta.layout.row_bytes))
    fd = os.open(tmp_path / "slabs" / "00000001.slab", os.O_RDWR)
    for bit in range(0, ref.length * 8, 1009):
        at = ref.offset + bit // 8
        byte = os.pread(fd, 1, at)
        os.pwrite(fd, bytes([byte[0] ^ 1 << bit % 8]), at)
        with pytest.raises(ImageCorrupt, match=f"slab 1, offset {ref.offset}: "):
            await images.get(ref, out)
        os.pwrite(fd, byte, at)
    os.close(fd)
    assert await images.get(ref, out) == meta


# -- giving back -----------------------------------------------------------------------------------
async def test_freed_room_is_used_again_and_a_double_free_raises(images, meta, make_row):
    ref = await images.put(make_row(meta), meta)
    images.free(ref)
    with pytest.raises(StatevisorError, match="freed twice"):
        images.free(ref)
    again = await images.put(make_row(meta, 1), meta)
    assert (again.slab, again.offset) == (ref.slab, ref.offset)
    images.check()


async def test_an_extent_is_not_given_out_while_it_is_read(images, files, meta, make_row):
    row = make_row(meta)
    ref = await ready(images, meta, row)
    files.gates["read"] = threading.Event()
    out = memoryview(bytearray(len(row)))
    reading = asyncio.ensure_future(images.get(ref, out))
    await files.until(lambda: files.reached["read"])
    images.free(ref)
    with pytest.raises(StatevisorError, match="freed twice"):
        images.free(ref)
    with pytest.raises(ImageCorrupt, match="no image is kept"):
        await images.export(ref)
    other = await images.put(make_row(meta, 1), meta)
    assert other.offset != ref.offset
    files.gates["read"].set()
    await reading
    assert out == row
    assert (await images.put(make_row(meta, 2), meta)).offset == ref.offset
    images.check()


async def test_empty_slabs_are_unlinked(images, files, make_meta, make_row, tmp_path):
    meta = make_meta(StateFamily(name="wkv", shape=(1, 200_000), dtype="U8"))
    refs = [await images.put(make_row(meta, k), meta) for k in range(3)]
    big = make_meta(StateFamily(name="wkv", shape=(1, MIB), dtype="U8"))
    refs.append(await images.put(make_row(big), big))
    await images._room.close()
    assert len({ref.slab for ref in refs}) == 4
    for ref in refs:
        images.free(ref)
    await images._room.close()
    assert images.used_bytes == 0
    assert len(list((tmp_path / "slabs").iterdir())) == 1
    images.check()


# -- a failing disk --------------------------------------------------------------------------------
async def test_a_failed_sync_stops_and_is_never_asked_again(images, files, stop, meta, make_row):
    await ready(images, meta, make_row(meta))
    files.faults["sync"] = OSError(5, "Input/output error")
    syncs = files.reached["sync"]
    with pytest.raises(Stopped, match=r"cannot sync .*slab: Input/output error"):
        await images.put(make_row(meta), meta)
    files.faults.clear()  # a second sync would succeed, and would be a lie
    with pytest.raises(Stopped, match="Input/output error"):
        await images.put(make_row(meta), meta)
    assert files.reached["sync"] == syncs + 1
    assert len(stop.reasons) == 2


async def test_a_failed_folder_sync_stops_too(images, files, stop, meta, make_row):
    files.faults["sync_folder"] = OSError(5, "Input/output error")
    with pytest.raises(Stopped, match="slabs: Input/output"):
        await images.put(make_row(meta), meta)
    assert stop.reasons


def test_a_failed_sync_ends_the_process_with_one_line(tmp_path):
    script = """
import asyncio, sys
from pathlib import Path
from statevisor.hypervisor.layout import Fingerprints, Layout, StateFamily
from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.store.files import Files
from statevisor.store.images import SlabImages

class Broken(Files):
    def sync(self, fd):
        raise OSError(5, "Input/output error")

layout = Layout(families=(StateFamily(name="wkv", shape=(1, 8), dtype="F32"),))
prints = Fingerprints(layout=layout.fingerprint, weights="w", build="b")
meta = ImageMeta(layout=layout, fingerprints=prints, position=0, absorbed=0, pending=())

async def main():
    images = SlabImages.open(Path(sys.argv[1]), (), incarnation=1, files=Broken())
    try:
        await images.put(memoryview(bytearray(32)), meta)
    finally:
        print("acknowledged", flush=True)

asyncio.run(main())
"""
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "slabs")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 74, result.stderr
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, lines
    assert "00000001.slab: Input/output error; the process ends" in lines[0]


async def test_a_full_disk_fails_the_put_and_the_next_may_succeed(images, files, meta, make_row):
    files.faults["zeros"] = OSError(28, "No space left on device")
    with pytest.raises(Unavailable, match="no room for images: No space left") as full:
        await images.put(make_row(meta), meta)
    assert "disk" in full.value.hint
    files.faults.clear()
    await images.put(make_row(meta), meta)
    images.check()


async def test_a_failed_write_frees_its_room(images, files, meta, make_row):
    ref = await ready(images, meta, make_row(meta))
    used = images.used_bytes
    files.faults["write"] = OSError(5, "Input/output error")
    with pytest.raises(Unavailable, match="cannot write an image: Input/output error"):
        await images.put(make_row(meta), meta)
    files.faults.clear()
    assert images.used_bytes == used
    assert (await images.put(make_row(meta), meta)).offset == ref.offset + ref.length
    images.check()


async def test_the_limit_is_told_and_room_ahead_does_not_count_as_need(tmp_path, meta, make_row):
    config = SlabConfig(slab_bytes=64 * 1024, step_bytes=64 * 1024, limit_bytes=64 * 1024)
    images = SlabImages.open(tmp_path / "slabs", (), incarnation=1, config=config)
    refs = [await images.put(make_row(meta), meta) for _ in range(5)]
    with pytest.raises(QuotaExceeded):
        await images.put(make_row(meta), meta)
    images.free(refs[2])
    await images.put(make_row(meta), meta)
    await images.close()


# -- cancelled callers -----------------------------------------------------------------------------
async def test_a_cancelled_get_returns_when_its_reader_is_done(images, files, meta, make_row):
    ref = await ready(images, meta, make_row(meta))
    files.gates["read"] = threading.Event()
    reading = asyncio.ensure_future(images.get(ref, memoryview(bytearray(64))))
    await files.until(lambda: files.reached["read"])
    reading.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not reading.done()  # its thread still writes into the caller's memory
    files.gates["read"].set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not images._readers


@pytest.mark.parametrize("where", ["write", "sync"])
async def test_a_cancelled_put_frees_its_room(images, files, meta, make_row, where):
    await ready(images, meta, make_row(meta))
    used, reached = images.used_bytes, files.reached[where]
    files.gates[where] = threading.Event()
    put = asyncio.ensure_future(images.put(make_row(meta), meta))
    await files.until(lambda: files.reached[where] > reached)
    put.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not put.done()
    assert images.used_bytes > used
    files.gates[where].set()
    with pytest.raises(asyncio.CancelledError):
        await put
    assert images.used_bytes == used
    images.check()


# -- the index -------------------------------------------------------------------------------------
async def test_the_index_can_be_rebuilt_from_the_disk(images, meta, make_meta, make_row):
    refs = [await images.put(make_row(meta, k), meta) for k in range(4)]
    other = make_meta(absorbed=0, pending=())
    refs.append(await images.put(make_row(other, 9), other))
    found = {header.ref: (header.position, header.absorbed) for header in await images.scan()}
    assert found == {**dict.fromkeys(refs[:4], (12, 11)), refs[4]: (0, 0)}


async def test_a_younger_image_hides_what_it_overwrote(images, make_meta, make_row):
    long = make_meta(StateFamily(name="wkv", shape=(1, 40_000), dtype="U8"))
    short = make_meta(StateFamily(name="wkv", shape=(1, 8), dtype="U8"))
    old = await images.put(make_row(long), long)
    images.free(old)
    first = await images.put(make_row(short, 1), short)
    second = await images.put(make_row(short, 2), short)  # inside what was `old`
    assert old.offset < second.offset < old.offset + old.length
    assert [header.ref for header in await images.scan()] == [first, second]


async def test_a_damaged_image_is_not_found(images, tmp_path, meta, make_row):
    refs = [await images.put(make_row(meta, k), meta) for k in range(3)]
    fd = os.open(tmp_path / "slabs" / "00000001.slab", os.O_RDWR)
    os.pwrite(fd, b"\xff", refs[1].offset + 4096 + 10)
    os.close(fd)
    assert [header.ref for header in await images.scan()] == [refs[0], refs[2]]


async def test_ten_rounds_of_everything_leave_no_leak(tmp_path, make_meta, make_row):
    rng = random.Random(11)
    folder = Path(tmp_path / "slabs")
    images = SlabImages.open(folder, (), incarnation=1, config=CONFIG)
    held = {}
    for step in range(120):
        verb = rng.choice(["put", "put", "get", "free", "reopen"])
        if verb == "put":
            size = rng.choice([8, 5000, 70_000, 300_000])
            meta = make_meta(StateFamily(name="wkv", shape=(1, size), dtype="U8"))
            row = make_row(meta, step)
            held[await images.put(row, meta)] = bytes(row)
        elif verb == "free" and held:
            ref = rng.choice(list(held))
            del held[ref]
            images.free(ref)
        elif verb == "reopen" and step % 4 == 0:
            await images.close()
            images = SlabImages.open(folder, held, incarnation=step, config=CONFIG)
        elif held:
            ref = rng.choice(list(held))
            out = memoryview(bytearray(len(held[ref])))
            await images.get(ref, out)
            assert out == held[ref]
        images.check()
        assert images.used_bytes == sum(ref.length for ref in held)
    for ref, row in held.items():
        assert (await images.export(ref)).endswith(row)
    await images.close()


async def test_the_disk_begins_with_a_large_image_before_its_end_is_written(
    tmp_path, make_meta, make_row
):
    done = []

    class Begun(Files):
        def write(self, fd, buffers, offset):
            if any(buffers[0]):
                done.append(("write", offset, sum(map(len, buffers))))
            super().write(fd, buffers, offset)

        def begin_sync(self, fd, offset, length):
            done.append(("begin", offset, length))
            super().begin_sync(fd, offset, length)

    images = SlabImages.open(tmp_path / "slabs", (), incarnation=1, files=Begun())
    meta = make_meta(StateFamily(name="wkv", shape=(1, 5 * MIB // 4), dtype="F32"))
    ref = await images.put(make_row(meta), meta)
    at, run, last = ref.offset + 8192, 2 * MIB, MIB
    runs = [(at, run), (at + run, run), (at + 2 * run, last)]
    wanted = [(what, *where) for where in runs for what in ("write", "begin")]
    assert done == [*wanted, ("write", ref.offset, 8192)]
    done.clear()
    small = make_meta()
    await images.put(make_row(small), small)
    assert [step[0] for step in done] == ["write", "write"]
    await images.close()
