"""Large rows are written past the page cache, and the extent is the same as any other."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
from threading import Event, Semaphore

import pytest

from statevisor.hypervisor.errors import Unavailable
from statevisor.hypervisor.filling import Filling
from statevisor.hypervisor.layout import StateFamily
from statevisor.store import images as images_module
from statevisor.store.extent_write import ExtentWrite
from statevisor.store.files import Files
from statevisor.store.images import SlabImages
from statevisor.store.shared import Shared

MIB = 1 << 20


class Watched(Files):
    """Tells the ways of writing apart; past the page cache on any file system, so not really."""

    def __init__(self):
        self.direct = set()
        self.done = []
        self.fault = None
        self.wrote = Semaphore(0)

    def open_direct(self, path):
        fd = os.open(path, os.O_RDWR)
        self.direct.add(fd)
        return fd

    def write(self, fd, buffers, offset):
        if fd in self.direct:
            assert all(len(part) % 4096 == 0 for part in buffers), "a disk moves whole pages"
            assert all(address(part) % 4096 == 0 for part in buffers), "from whole pages"
            self.done.append(("direct", offset, sum(map(len, buffers))))
            if self.fault is not None:
                raise self.fault
        elif any(any(part) for part in buffers):
            self.done.append(("cached", offset, sum(map(len, buffers))))
        super().write(fd, buffers, offset)
        self.wrote.release()

    async def next_write(self):
        assert await asyncio.to_thread(self.wrote.acquire, timeout=20)

    def sync(self, fd):
        assert fd not in self.direct
        self.done.append(("sync",))
        super().sync(fd)


def address(part):
    return ctypes.addressof(ctypes.c_char.from_buffer(part))


@pytest.fixture
def files():
    return Watched()


@pytest.fixture
async def images(tmp_path, files):
    opened = SlabImages.open(tmp_path / "slabs", (), incarnation=1, files=files)
    yield opened
    await opened.close()


@pytest.fixture(params=[0, 8, 4088], ids=["whole pages", "8 bytes more", "a page but 8"])
def meta(request, make_meta):
    floats = (3 * MIB + request.param) // 4
    return make_meta(StateFamily(name="wkv", shape=(1, floats), dtype="F32"))


def paged(row):
    """The row in memory that begins on a page."""
    out = memoryview(mmap.mmap(-1, -(-len(row) // 4096) * 4096))[: len(row)]
    out[:] = row
    return out


async def seen(images, files, row, meta):
    """What a put does when the room is there."""
    images.free(await images.put(row, meta))
    await images._room.close()
    files.done.clear()
    ref = await images.put(row, meta)
    done = files.done.copy()
    await images._room.close()
    return ref, done


@pytest.fixture
def after(monkeypatch, files):
    """Let the hash be there before the row is written, or only when the row is synced."""

    def order(first):
        hashed, synced = Event(), Event()
        hash_it, write, sync = ExtentWrite.hashed, files.write, files.sync

        class Told(Shared):
            def __call__(self):
                made = super().__call__()
                hashed.set()
                return made

        def hashing(writing):
            assert first != "sync" or synced.wait(20), "nobody synced the row"
            return hash_it(writing)

        def writing(fd, buffers, offset):
            if fd in files.direct and first == "hash":
                assert hashed.wait(20), "nobody hashes beside the writer"
            write(fd, buffers, offset)

        def syncing(fd):
            sync(fd)
            synced.set()

        monkeypatch.setattr(images_module, "Shared", Told)
        monkeypatch.setattr(ExtentWrite, "hashed", hashing)
        monkeypatch.setattr(files, "write", writing)
        monkeypatch.setattr(files, "sync", syncing)

    return order


async def test_row_then_headers_then_sync_all_past_the_page_cache(images, files, meta, make_row):
    ref, done = await seen(images, files, paged(make_row(meta, 3)), meta)
    assert [step for step in done if step[0] != "sync"] == [
        ("direct", ref.offset + 8192, ref.length - 8192),
        ("direct", ref.offset, 8192),
    ]
    assert done[-1] == ("sync",)


async def test_the_row_is_synced_while_it_is_hashed(images, files, meta, make_row, after):
    row = paged(make_row(meta, 3))
    await seen(images, files, row, meta)
    files.done.clear()
    after("sync")
    await images.put(row, meta)
    assert [step[0] for step in files.done] == ["direct", "sync", "direct", "sync"]


async def test_one_sync_is_enough_where_the_hash_is_there(images, files, meta, make_row, after):
    row = paged(make_row(meta, 3))
    await seen(images, files, row, meta)
    files.done.clear()
    after("hash")
    await images.put(row, meta)
    assert [step[0] for step in files.done] == ["direct", "direct", "sync"]


async def test_the_way_of_writing_changes_no_byte(images, files, meta, make_row):
    row = paged(bytes(64) + bytes(make_row(meta, 3)))[64:]  # beside the start of a page for sure
    direct, _ = await seen(images, files, paged(row), meta)
    cached, done = await seen(images, files, row, meta)
    assert {step[0] for step in done} == {"cached", "sync"}
    assert direct.digest == cached.digest == images.digest(row, meta)
    assert await images.export(direct) == await images.export(cached)
    assert await images.verify(direct) == await images.verify(cached) == meta
    out = paged(bytes(len(row)))
    assert await images.get(cached, out) == meta
    assert out == row


async def test_rows_that_are_small_or_begin_anywhere_or_are_not_ours_go_through_the_page_cache(
    images, files, meta, make_meta, make_row
):
    row = make_row(meta, 3)
    shifted = paged(bytes(64) + bytes(row))[64:]
    small = make_meta(StateFamily(name="wkv", shape=(1, 8192), dtype="F32"))
    for one, of in (
        (shifted, meta),
        (paged(row).toreadonly(), meta),
        (paged(make_row(small)), small),
    ):
        _, done = await seen(images, files, one, of)
        assert {step[0] for step in done} == {"cached", "sync"}


async def test_a_disk_that_cannot_be_written_so_is_written_as_any_file(
    images, files, meta, make_row
):
    files.fault = OSError(22, "Invalid argument")
    row = make_row(meta, 3)
    ref, done = await seen(images, files, paged(row), meta)
    written = [step[0] for step in done if step[0] != "sync"]
    assert written == ["direct", *["cached"] * len(written[1:])]
    assert done[-1] == ("sync",)
    out = paged(bytes(len(row)))
    await images.get(ref, out)
    assert out == row


async def test_a_disk_that_fails_is_told_and_its_room_is_free_again(images, files, meta, make_row):
    row = paged(make_row(meta))
    await seen(images, files, row, meta)
    used = images.used_bytes
    files.fault = OSError(5, "Input/output error")
    with pytest.raises(Unavailable, match="Input/output"):
        await images.put(row, meta)
    assert images.used_bytes == used
    assert "cached" not in {step[0] for step in files.done}  # nor tried another way
    images.check()


async def test_the_headers_are_written_behind_the_row_even_if_the_hash_is_there_first(
    images, files, meta, make_row, after
):
    """What stands there before is a row without a header, which is nothing."""
    row = paged(make_row(meta))
    await seen(images, files, row, meta)
    files.done.clear()
    after("hash")
    ref = await images.put(row, meta)
    assert [step[1] for step in files.done if step[0] == "direct"] == [
        ref.offset + 8192,
        ref.offset,
    ]


async def test_a_failed_write_waits_for_the_hash(images, files, meta, make_row, monkeypatch):
    """Until then a thread reads the caller's memory."""
    row = paged(make_row(meta))
    await seen(images, files, row, meta)
    files.fault = OSError(5, "Input/output error")
    told, hashed, hash_it = Event(), [], ExtentWrite.hashed

    def hashing(one):
        made = hash_it(one)
        hashed.append(not told.wait(0.1))
        return made

    monkeypatch.setattr(ExtentWrite, "hashed", hashing)
    with pytest.raises(Unavailable, match="Input/output"):
        await images.put(row, meta)
    told.set()
    assert hashed == [True]


async def test_a_row_is_written_as_it_comes(images, files, meta, make_row):
    row = paged(make_row(meta, 3))
    whole, _ = await seen(images, files, row, meta)
    files.done.clear()
    files.wrote = Semaphore(0)
    here, filling = paged(bytes(len(row))), Filling()
    putting = asyncio.create_task(images.put(here, meta, filling.wait))
    for stop in (MIB, 2 * MIB + 100, len(row)):
        here[:stop] = row[:stop]
        filling.reach(stop)
        await files.next_write()
    ref = await putting
    first = ref.offset + 8192
    assert [step for step in files.done if step[0] != "sync"] == [
        ("direct", first, MIB),
        ("direct", first + MIB, MIB),
        ("direct", first + 2 * MIB, ref.length - 8192 - 2 * MIB),
        ("direct", ref.offset, 8192),
    ]
    assert ref.digest == whole.digest
    assert await images.verify(ref) == meta


async def test_a_row_that_never_comes_leaves_nothing(images, files, meta, make_row):
    row = paged(make_row(meta))
    await seen(images, files, row, meta)
    files.done.clear()
    files.wrote = Semaphore(0)
    used, filling = images.used_bytes, Filling()
    putting = asyncio.create_task(images.put(row, meta, filling.wait))
    filling.reach(MIB)
    await files.next_write()
    filling.fail(RuntimeError("device lost"))
    with pytest.raises(RuntimeError, match="device lost"):
        await putting
    assert images.used_bytes == used
    assert len(files.done) == 1, "neither headers nor a sync"
    images.check()
