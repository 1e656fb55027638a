"""What every Images port promises; the twin in memory and the slab files both pass."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import replace

import pytest
import safetensors

from statevisor.hypervisor.errors import (
    ImageCorrupt,
    IncompatibleImage,
    QuotaExceeded,
    StatevisorError,
)
from statevisor.hypervisor.image_ports import Extent, ImageMeta, Images
from statevisor.hypervisor.layout import Fingerprints, Layout, StateFamily
from statevisor.store.images import SlabImages
from statevisor.store.memory_images import MemoryImages
from statevisor.store.slabs import SlabConfig

CONFIG = SlabConfig(slab_bytes=1 << 20, step_bytes=1 << 18, threads=2)
FAMILIES = (
    StateFamily(name="q_conv", shape=(2, 4, 8), dtype="BF16"),
    StateFamily(name="k_conv", shape=(2, 4, 8), dtype="F16", kind="ring"),
    StateFamily(name="v_conv", shape=(2, 3, 8), dtype="F32"),
    StateFamily(name="wkv", shape=(2, 2, 4, 4), dtype="F32"),
)


def make_meta(count=2, absorbed=11, pending=(42,), weights="sha256:w", build="cpu"):
    layout = Layout(families=FAMILIES[-count:])
    return ImageMeta(
        layout=layout,
        fingerprints=Fingerprints(layout=layout.fingerprint, weights=weights, build=build),
        position=absorbed + len(pending),
        absorbed=absorbed,
        pending=pending,
    )


def make_row(meta, seed=0):
    return memoryview(bytearray(random.Random(seed).randbytes(meta.layout.row_bytes)))


def empty(meta):
    return memoryview(bytearray(meta.layout.row_bytes))


class MemoryStore:
    """The twin, with a way to damage it."""

    header_bytes = 0

    def __init__(self, folder):
        self.images = MemoryImages()

    def flip(self, ref, bit):
        self.images.files[ref.offset][bit // 8] ^= 1 << bit % 8

    async def close(self):
        pass


class SlabStore:
    """The real thing, with a way to damage it."""

    header_bytes = 4096

    def __init__(self, folder):
        self.folder = folder / "slabs"
        self.images = SlabImages.open(self.folder, (), incarnation=1, config=CONFIG)

    def flip(self, ref, bit):
        at = ref.offset + self.header_bytes + bit // 8
        fd = os.open(self.folder / f"{ref.slab:08d}.slab", os.O_RDWR)
        os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1 << bit % 8]), at)
        os.close(fd)

    async def close(self):
        await self.images.close()


@pytest.fixture(params=[MemoryStore, SlabStore], ids=["memory", "slabs"])
async def store(request, tmp_path):
    made = request.param(tmp_path)
    yield made
    made.images.check()
    await made.close()


@pytest.fixture
def images(store) -> Images:
    return store.images


@pytest.mark.parametrize("count", [1, 2, 3, 4])
async def test_any_number_of_families_comes_back(images, count):
    meta = make_meta(count)
    row, out = make_row(meta, count), empty(meta)
    ref = await images.put(row, meta)
    assert await images.get(ref, out) == meta
    assert out == row


async def test_the_ref_says_what_it_is(images):
    meta = make_meta()
    ref = await images.put(make_row(meta), meta)
    file = await images.export(ref)
    assert ref.nbytes == len(file)
    assert ref.length % 4096 == ref.offset % 4096 == 0
    assert ref.length >= ref.nbytes
    assert (ref.layout, ref.weights, ref.build) == (meta.layout.fingerprint, "sha256:w", "cpu")
    algorithm, _, digits = ref.digest.partition(":")
    assert algorithm
    assert len(bytes.fromhex(digits)) == 32


async def test_the_same_state_has_the_same_digest(images):
    meta = make_meta()
    row = make_row(meta)
    told = images.digest(row, meta)
    first, second = await images.put(row, meta), await images.put(bytes_view(row), replace(meta))
    assert first.digest == second.digest == told
    assert (first.slab, first.offset) != (second.slab, second.offset)


def bytes_view(row):
    return memoryview(bytes(row))


@pytest.mark.parametrize(
    "other",
    [
        make_meta(pending=(43,)),
        make_meta(absorbed=12),
        make_meta(weights="sha256:v"),
        make_meta(build="cuda"),
    ],
)
async def test_another_state_has_another_digest(images, other):
    row = make_row(make_meta())
    assert images.digest(row, make_meta()) != images.digest(row, other)
    changed = make_row(make_meta())
    changed[5] ^= 1
    assert images.digest(changed, make_meta()) != images.digest(row, make_meta())


async def test_an_empty_session_comes_back(images):
    meta = make_meta(absorbed=0, pending=())
    row, out = empty(meta), make_row(meta)
    ref = await images.put(row, meta)
    assert await images.get(ref, out) == meta
    assert out == row


async def test_kept_bytes_do_not_change_with_the_state(images):
    meta = make_meta()
    row = make_row(meta)
    ref = await images.put(row, meta)
    before = await images.export(ref)
    row[:] = bytes(len(row))
    out = empty(meta)
    await images.get(ref, out)
    out[:] = bytes(len(out))
    assert await images.export(ref) == before


async def test_an_export_is_a_file_that_others_read(images):
    meta = make_meta(4)
    row = make_row(meta)
    file = await images.export(await images.put(row, meta))
    tensors = dict(safetensors.deserialize(file))
    for family in meta.layout.families:
        start = meta.layout.offset(family.name)
        assert bytes(tensors[family.name]["data"]) == row[start : start + family.nbytes]


async def test_export_and_import_change_no_byte(images):
    meta = make_meta(3)
    row, out = make_row(meta), empty(meta)
    ref = await images.put(row, meta)
    file = await images.export(ref)
    found = images.decode(file, out, meta.fingerprints)
    assert (found, out) == (meta, row)
    again = await images.put(out, found)
    assert again.digest == ref.digest
    assert await images.export(again) == file


async def test_an_import_of_other_weights_or_another_layout_is_refused(images):
    meta = make_meta(2)
    file = await images.export(await images.put(make_row(meta), meta))
    for other in (make_meta(2, weights="sha256:fine-tune"), make_meta(3)):
        out = empty(other)
        with pytest.raises(IncompatibleImage):
            images.decode(file, out, other.fingerprints)
        assert out == empty(other)
    images.decode(file, empty(meta), replace(meta.fingerprints, build="another"))


async def test_a_damaged_import_is_refused(images):
    meta = make_meta()
    file = await images.export(await images.put(make_row(meta), meta))
    for bad in (b"", file[:-1], file + b"\0", b"\0" * len(file), file[8:]):
        with pytest.raises(ImageCorrupt):
            images.decode(bad, empty(meta), meta.fingerprints)


async def test_a_flipped_bit_is_found_and_named(images, store):
    meta = make_meta(1)
    ref = await images.put(make_row(meta), meta)
    for bit in range(0, ref.nbytes * 8, 331):
        store.flip(ref, bit)
        with pytest.raises(ImageCorrupt, match=f"slab {ref.slab}, offset {ref.offset}"):
            await images.get(ref, empty(meta))
        with pytest.raises(ImageCorrupt):
            await images.export(ref)
        store.flip(ref, bit)
    assert await images.get(ref, empty(meta)) == meta


async def test_a_damaged_image_harms_no_other(images, store):
    meta = make_meta()
    refs = [await images.put(make_row(meta, k), meta) for k in range(3)]
    store.flip(refs[1], 5)
    for k in (0, 2):
        out = empty(meta)
        await images.get(refs[k], out)
        assert out == make_row(meta, k)


async def test_a_buffer_of_another_size_is_refused(images):
    meta = make_meta()
    ref = await images.put(make_row(meta), meta)
    for size in (0, meta.layout.row_bytes - 8, meta.layout.row_bytes + 4096):
        with pytest.raises(IncompatibleImage):
            await images.get(ref, memoryview(bytearray(size)))


async def test_a_row_of_another_size_is_not_written(images):
    meta = make_meta()
    with pytest.raises(ValueError, match="bytes"):
        await images.put(make_row(meta)[8:], meta)
    assert images.used_bytes == 0


async def test_what_was_freed_is_not_served_and_not_freed_again(images):
    meta = make_meta()
    ref = await images.put(make_row(meta), meta)
    kept = await images.put(make_row(meta, 1), meta)
    used = images.used_bytes
    images.free(ref)
    assert images.used_bytes == used - ref.length
    with pytest.raises(ImageCorrupt):
        await images.get(ref, empty(meta))
    with pytest.raises(ImageCorrupt):
        await images.export(ref)
    with pytest.raises(StatevisorError, match="freed twice"):
        images.free(ref)
    assert await images.export(kept)


async def test_a_ref_to_nothing_is_not_served(images):
    meta = make_meta()
    ref = await images.put(make_row(meta), meta)
    wrong = "blake3:" + "0" * 64
    for hole in (
        replace(ref, offset=ref.offset + 4096),
        replace(ref, slab=77, offset=1 << 40),
        replace(ref, digest=wrong),
        replace(ref, nbytes=ref.nbytes + 8),
    ):
        with pytest.raises(ImageCorrupt):
            await images.export(hole)


async def test_many_at_once_do_not_touch_each_other(images):
    meta = make_meta(4)
    refs = await asyncio.gather(*(images.put(make_row(meta, k), meta) for k in range(24)))
    assert images.used_bytes == sum(ref.length for ref in refs)
    outs = [empty(meta) for _ in refs]
    await asyncio.gather(*(images.get(ref, out) for ref, out in zip(refs, outs, strict=True)))
    assert [bytes(out) for out in outs] == [bytes(make_row(meta, k)) for k in range(24)]


async def test_the_room_is_told(images):
    meta = make_meta()
    ref = await images.put(make_row(meta), meta)
    assert images.used_bytes == ref.length
    assert images.capacity_bytes >= images.used_bytes


async def test_what_is_verified_is_the_whole_image(images, store):
    meta = make_meta()
    ref = await images.put(make_row(meta), meta)
    assert await images.verify(ref) == meta
    for bit in (3, ref.nbytes * 4, ref.nbytes * 8 - 1):
        store.flip(ref, bit)
        with pytest.raises(ImageCorrupt):
            await images.verify(ref)
        store.flip(ref, bit)
    assert await images.verify(ref) == meta


async def test_what_is_in_use_can_be_listed_and_given_back(images):
    meta = make_meta()
    refs = [await images.put(make_row(meta, k), meta) for k in range(3)]

    def place(ref):
        return Extent(slab=ref.slab, offset=ref.offset, length=ref.length)

    assert images.extents() == {place(ref) for ref in refs}
    images.reclaim(place(refs[1]))
    assert images.extents() == {place(refs[0]), place(refs[2])}
    with pytest.raises(StatevisorError):
        images.reclaim(place(refs[1]))
    with pytest.raises(ImageCorrupt):
        await images.verify(refs[1])


async def test_what_is_written_later_is_told_from_what_lay_there(images):
    meta = make_meta()
    first = await images.put(make_row(meta, 1), meta)
    place = Extent(slab=first.slab, offset=first.offset, length=first.length)
    born = images.birth(place)
    assert images.birth(place) == born
    images.reclaim(place)
    again = [await images.put(make_row(meta, k), meta) for k in range(2, 6)]
    births = [images.birth(Extent(slab=r.slab, offset=r.offset, length=r.length)) for r in again]
    assert born not in births
    assert len(set(births)) == len(births)


async def test_it_tells_before_a_write_whether_there_is_room(tmp_path):
    meta = make_meta()
    row = make_row(meta)
    need = len(row) + 3 * 4096
    slabs = SlabImages.open(
        tmp_path / "small",
        (),
        incarnation=1,
        config=replace(CONFIG, limit_bytes=need // 4096 * 4096),
    )
    for images in (slabs, MemoryImages(need)):
        assert images.fits(len(row))
        ref = await images.put(row, meta)
        assert not images.fits(len(row))
        with pytest.raises(QuotaExceeded):
            await images.put(row, meta)
        images.free(ref)
        assert images.fits(len(row))
        images.check()
    await slabs.close()
