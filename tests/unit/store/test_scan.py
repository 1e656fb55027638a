"""Finding images without the catalog: the young hide the old, forgeries are passed over."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from statevisor.hypervisor.layout import StateFamily
from statevisor.hypervisor.records import ImageRef
from statevisor.store import extent
from statevisor.store.extent import ExtentHeader
from statevisor.store.files import Files
from statevisor.store.images import SlabImages
from statevisor.store.scan import scan, youngest
from statevisor.store.slabs import SlabConfig

CONFIG = SlabConfig(slab_bytes=1 << 18, step_bytes=1 << 16, threads=1)


def header(generation, offset, length, nbytes=8192, slab=1):
    ref = ImageRef(
        digest="blake3:" + f"{generation:064x}",
        nbytes=nbytes,
        slab=slab,
        offset=offset,
        length=length,
        layout="l",
        weights="w",
        build="b",
    )
    return ExtentHeader(
        generation=generation, ref=ref, position=1, absorbed=0, checksums=(b"\0" * 16,)
    )


def test_of_overlapping_extents_the_youngest_stands():
    rng = random.Random(2)
    for _ in range(200):
        disk, found = [0] * 40, []
        for generation in range(1, 12):
            start = rng.randrange(30)
            length = rng.randrange(1, 10)
            found.append(header(generation, start, length))
            disk[start : start + length] = [generation] * length
        whole = {h.generation for h in found if disk.count(h.generation) == h.ref.length}
        rng.shuffle(found)
        kept = [h.generation for h in youngest(found)]
        assert whole <= set(kept)  # nothing intact is hidden; a digest tells the others
        assert 11 in kept


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "slabs"


async def test_a_later_incarnation_is_always_younger(folder, make_meta, make_row):
    long = make_meta(StateFamily(name="wkv", shape=(1, 40_000), dtype="U8"))
    short = make_meta(StateFamily(name="wkv", shape=(1, 8), dtype="U8"))
    images = SlabImages.open(folder, (), incarnation=4, config=CONFIG)
    for k in range(5):
        images.free(await images.put(make_row(long, k), long))
    await images.close()
    images = SlabImages.open(folder, (), incarnation=5, config=CONFIG)
    refs = [await images.put(make_row(short, k), short) for k in range(2)]
    found = await images.scan()
    assert [h.ref for h in found] == refs
    assert found[0].generation > 5 << 32
    await images.close()


async def test_what_a_scan_found_can_be_opened(folder, make_meta, make_row):
    meta = make_meta()
    images = SlabImages.open(folder, (), incarnation=1, config=CONFIG)
    refs = [await images.put(make_row(meta, k), meta) for k in range(30)]
    assert {ref.slab for ref in refs} == {1, 2}
    found = [h.ref for h in await images.scan()]
    await images.close()
    images = SlabImages.open(folder, found, incarnation=2, config=CONFIG)
    for k, ref in enumerate(refs):
        assert (await images.export(ref)).endswith(bytes(make_row(meta, k)))
    images.check()
    await images.close()


def test_strangers_and_forgeries_are_passed_over(tmp_path):
    good = header(1, 0, extent.extent_bytes(8192)).pack()
    huge = header(2, 8192, extent.extent_bytes(1 << 20), nbytes=1 << 20).pack()
    elsewhere = header(3, 4096 * 9, extent.extent_bytes(8192)).pack()
    other_slab = header(4, 4096 * 5, extent.extent_bytes(8192), slab=2).pack()
    torn = bytearray(header(5, 4096 * 6, extent.extent_bytes(8192)).pack())
    torn[100] ^= 1
    long_claim = bytearray(good)
    long_claim[16:20] = (1 << 31).to_bytes(4, "little")
    path = tmp_path / "00000001.slab"
    path.write_bytes(good + good + huge + elsewhere + bytes(4096) + other_slab + torn + long_claim)
    files = Files()
    fd = files.open(path)
    assert scan(files, fd, 1) == ()  # not one of them is an intact image of this place
    files.close(fd)


def test_the_ref_of_a_header_is_the_whole_index_entry():
    packed = header(7, 4096, extent.extent_bytes(8192)).pack()
    assert extent.unpack(packed).ref == header(7, 4096, extent.extent_bytes(8192)).ref
    assert replace(extent.unpack(packed), generation=8) != extent.unpack(packed)
