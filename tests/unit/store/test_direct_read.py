"""Large images are read past the page cache, and no bit of them passes unchecked."""

from __future__ import annotations

import mmap
import os
import random
from dataclasses import replace
from threading import Event

import pytest

from statevisor.hypervisor.errors import ImageCorrupt, IncompatibleImage
from statevisor.hypervisor.layout import StateFamily
from statevisor.store import direct_read, extent_io
from statevisor.store.digest import ImageHash
from statevisor.store.direct_read import DirectRead
from statevisor.store.files import Files
from statevisor.store.images import SlabImages

MIB = 1 << 20
ROW_BYTES = 3 * MIB


class Watched(Files):
    """Counts the reads past the page cache; on any file system, so through the page cache here."""

    def __init__(self):
        self.direct = set()
        self.reads = []
        self.fault = None

    def open_direct(self, path):
        fd = os.open(path, os.O_RDWR)
        self.direct.add(fd)
        return fd

    def read(self, fd, buffers, offset):
        if fd in self.direct:
            assert all(len(part) % 4096 == 0 for part in buffers), "a disk moves whole pages"
            if self.fault is not None:
                raise self.fault
            self.reads.append(offset)
        return super().read(fd, buffers, offset)


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
    floats = (ROW_BYTES + request.param) // 4
    return make_meta(StateFamily(name="wkv", shape=(1, floats), dtype="F32"))


def pages(nbytes):
    """Memory that begins on a page."""
    return memoryview(mmap.mmap(-1, -(-nbytes // 4096) * 4096))[:nbytes]


def flip(tmp_path, ref, at):
    fd = os.open(tmp_path / "slabs" / f"{ref.slab:08d}.slab", os.O_RDWR)
    byte = os.pread(fd, 1, ref.offset + at)[0]
    os.pwrite(fd, bytes([byte ^ 0x10]), ref.offset + at)
    os.close(fd)


async def test_it_reads_what_was_put_in_two_halves(images, files, meta, make_row):
    row, out = make_row(meta, 3), pages(meta.layout.row_bytes)
    ref = await images.put(row, meta)
    assert await images.get(ref, out) == meta
    assert out == row
    assert files.reads == [ref.offset, ref.offset + 4096 + 2 * MIB]


async def test_an_image_that_is_not_large_is_read_at_once(images, files, make_meta, make_row):
    meta = make_meta(StateFamily(name="wkv", shape=(1, MIB // 2), dtype="U8"))
    row, out = make_row(meta, 3), pages(meta.layout.row_bytes)
    ref = await images.put(row, meta)
    assert await images.get(ref, out) == meta
    assert out == row
    assert files.reads == [ref.offset]


async def test_a_run_is_checked_while_the_next_is_read(images, files, meta, make_row, monkeypatch):
    row, out = make_row(meta, 3), pages(meta.layout.row_bytes)
    ref = await images.put(row, meta)
    checked, begin, read = Event(), direct_read.DirectRead._begin, files.read

    def beginning(reading, cuts):
        made = begin(reading, cuts)
        checked.set()
        return made

    def later(fd, buffers, offset):
        assert offset == ref.offset or checked.wait(20), "nobody checks beside the reader"
        return read(fd, buffers, offset)

    monkeypatch.setattr(direct_read.DirectRead, "_begin", beginning)
    monkeypatch.setattr(files, "read", later)
    assert await images.get(ref, out) == meta
    assert out == row


@pytest.mark.parametrize("run", [1, 2, 16])
async def test_where_no_thread_is_free_the_reader_checks_every_run(
    images, tmp_path, meta, make_row, monkeypatch, run
):
    monkeypatch.setattr(direct_read, "LEAST_RUN", run)
    monkeypatch.setattr(direct_read, "MOST_RUN", run)
    row, out, disk = make_row(meta, 3), pages(meta.layout.row_bytes), Files()
    ref = await images.put(row, meta)
    fd = disk.open(tmp_path / "slabs" / f"{ref.slab:08d}.slab")
    offered = []
    head_bytes = ref.nbytes - len(out)
    assert DirectRead(ref, head_bytes, out).run(disk, fd, offered.append) == meta
    assert out == row
    assert len(offered) == -(-4 // run) - 1  # not the last: it is the reader's own
    for k in range(4):
        flip(tmp_path, ref, 4096 + k * MIB + 5)
        with pytest.raises(ImageCorrupt, match=f"MiB {k} of 4 is damaged"):
            DirectRead(ref, head_bytes, out).run(disk, fd)
        flip(tmp_path, ref, 4096 + k * MIB + 5)
    disk.close(fd)


async def test_a_very_large_image_is_read_in_runs(images, files, make_meta, make_row, monkeypatch):
    monkeypatch.setattr(direct_read, "MOST_RUN", 1)
    meta = make_meta(StateFamily(name="wkv", shape=(1, (3 * MIB + 8) // 4), dtype="F32"))
    row, out = make_row(meta, 3), pages(meta.layout.row_bytes)
    ref = await images.put(row, meta)
    assert await images.get(ref, out) == meta
    assert out == row
    assert files.reads == [ref.offset, *(ref.offset + 4096 + k * MIB for k in range(1, 4))]


async def test_memory_that_begins_anywhere_goes_through_the_page_cache(
    images, files, meta, make_row
):
    row, out = make_row(meta, 3), pages(meta.layout.row_bytes + 64)[64:]
    ref = await images.put(row, meta)
    assert await images.get(ref, out) == meta
    assert out == row
    assert not files.reads


async def test_a_small_image_goes_through_the_page_cache(images, files, make_meta, make_row):
    meta = make_meta()
    out = pages(meta.layout.row_bytes)
    await images.get(await images.put(make_row(meta), meta), out)
    assert not files.reads


async def test_a_flipped_bit_anywhere_is_found(images, tmp_path, files, meta, make_row):
    row, out = make_row(meta), pages(meta.layout.row_bytes)
    ref = await images.put(row, meta)
    rng = random.Random(5)
    ends = [0, 4095, 4096, 8192, ref.length - 1, 4096 + ref.nbytes - 1]
    for at in [*ends, *(rng.randrange(ref.length) for _ in range(40))]:
        flip(tmp_path, ref, at)
        with pytest.raises(ImageCorrupt, match=f"slab {ref.slab}, offset {ref.offset}"):
            await images.get(ref, out)
        flip(tmp_path, ref, at)
    await images.get(ref, out)
    assert out == row


async def test_without_the_checks_a_flipped_bit_would_be_served(
    images, tmp_path, meta, make_row, monkeypatch
):
    row, out = make_row(meta), pages(meta.layout.row_bytes)
    ref = await images.put(row, meta)
    flip(tmp_path, ref, MIB)

    class Blind(ImageHash):
        def add(self, piece, padding):
            return Anything()

    monkeypatch.setattr(extent_io, "ImageHash", Blind)
    await images.get(ref, out)
    assert out != row


class Anything:
    def __eq__(self, other):
        return True

    __hash__ = None


async def test_a_file_that_ends_early_is_told(images, tmp_path, meta, make_row):
    ref = await images.put(make_row(meta), meta)
    await images._room.close()  # else it grows again
    os.truncate(tmp_path / "slabs" / f"{ref.slab:08d}.slab", ref.offset + ref.length - 4096)
    with pytest.raises(ImageCorrupt, match="cut off"):
        await images.get(ref, pages(meta.layout.row_bytes))


async def test_another_image_in_its_place_is_not_served(images, meta, make_row):
    ref = await images.put(make_row(meta), meta)
    other = replace(ref, digest="blake3:" + "00" * 32)
    with pytest.raises(ImageCorrupt, match="and not blake3:00"):
        await images.get(other, pages(meta.layout.row_bytes))


async def test_a_row_of_another_size_is_refused(images, meta, make_row):
    ref = await images.put(make_row(meta), meta)
    with pytest.raises(IncompatibleImage, match="does not hold a row"):
        await images.get(ref, pages(meta.layout.row_bytes - 4096))


@pytest.mark.parametrize("fault", [OSError(22, "Invalid argument"), OSError(5, "I/O error")])
async def test_a_disk_that_cannot_be_read_so_is_read_as_any_file(
    images, files, meta, make_row, fault
):
    row, out = make_row(meta), pages(meta.layout.row_bytes)
    ref = await images.put(row, meta)
    files.fault = fault
    assert await images.get(ref, out) == meta
    assert out == row


def test_memory_that_begins_on_a_page_is_told_from_other():
    memory = pages(3 * 4096)
    assert direct_read.is_aligned(memory)
    assert direct_read.is_aligned(memory[4096:])
    assert not direct_read.is_aligned(memory[512:])


async def test_what_has_come_is_told_before_it_is_checked(images, tmp_path, files, meta, make_row):
    row, out = make_row(meta, 3), pages(meta.layout.row_bytes)
    ref = await images.put(row, meta)
    flip(tmp_path, ref, 4096 + 5)
    told = []

    def reached(nbytes):
        told.append((nbytes, out[:nbytes] == row[:nbytes]))

    with pytest.raises(ImageCorrupt):
        await images.get(ref, out, reached)
    whole = len(row) // 4096 * 4096
    assert told == [(2 * MIB - 4096, True), (whole, True)]


async def test_who_was_told_of_bytes_is_told_that_they_are_read_anew(
    images, files, meta, make_row, monkeypatch
):
    row, out, told = make_row(meta, 3), pages(meta.layout.row_bytes), []
    ref = await images.put(row, meta)
    read = files.read

    def half(fd, buffers, offset):
        if fd in files.direct and offset > ref.offset:
            raise OSError(5, "I/O error")
        return read(fd, buffers, offset)

    monkeypatch.setattr(files, "read", half)
    assert await images.get(ref, out, told.append) == meta
    assert told == [2 * MIB - 4096, 0]
    assert out == row
