"""An extent's header and the reading of a whole extent: every bit counts."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import pytest

from statevisor.hypervisor.errors import ImageCorrupt, IncompatibleImage
from statevisor.hypervisor.layout import StateFamily
from statevisor.hypervisor.records import ImageRef
from statevisor.store import codec, extent, extent_io
from statevisor.store.extent import ExtentHeader
from statevisor.store.extent_write import ExtentWrite
from statevisor.store.files import Files
from statevisor.store.slabs import Place

MIB = 1 << 20


class Disk(Files):
    """One file in memory."""

    def __init__(self, size=0):
        self.bytes = bytearray(size)

    def write(self, fd, buffers, offset):
        for buffer in buffers:
            self.bytes.extend(bytes(max(0, offset + len(buffer) - len(self.bytes))))
            self.bytes[offset : offset + len(buffer)] = buffer
            offset += len(buffer)

    def read(self, fd, buffers, offset):
        start = offset
        for buffer in buffers:
            got = self.bytes[offset : offset + len(buffer)]
            buffer[: len(got)] = got
            offset += len(got)
        return offset - start

    def expect(self, fd, offset, length):
        pass


def header(nbytes=10_000):
    return ExtentHeader(
        generation=(3 << 32) + 7,
        ref=ImageRef(
            digest="blake3:" + "5a" * 32,
            nbytes=nbytes,
            slab=12,
            offset=8192,
            length=extent.extent_bytes(nbytes),
            layout="sha256:l",
            weights="sha256:w",
            build="cpu, torch 2.11",
        ),
        position=100,
        absorbed=99,
        checksums=tuple(bytes([k % 256]) * 16 for k in range(-(-nbytes // MIB))),
    )


def written(meta, row, disk, offset=4096):
    """An extent as it is written."""
    writing = writing_of(meta, row, slab=3, offset=offset)
    return writing.run(disk, 0, writing.hashed)


def writing_of(meta, row, slab, offset):
    head = codec.encode_header(meta, row)
    place = Place(slab=slab, offset=offset, length=extent.extent_bytes(len(head) + len(row)))
    return ExtentWrite(place, row, len(head), meta, 9)


def read(disk, ref):
    file = bytearray(ref.nbytes)
    extent_io.read_extent(disk, 0, ref, [memoryview(file)])
    return bytes(file)


# -- the header ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("nbytes", "blocks"), [(4096, 1), (8 * MIB, 1), (200 * MIB, 1), (210 * MIB, 2), (1 << 31, 9)]
)
def test_a_header_comes_back(nbytes, blocks):
    packed = header(nbytes).pack()
    assert len(packed) == blocks * 4096
    assert extent.unpack(packed) == header(nbytes)


def test_every_flipped_bit_of_a_header_is_found():
    packed = header().pack()
    for bit in range(len(packed) * 8):
        damaged = bytearray(packed)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ImageCorrupt):  # never IncompatibleImage: no flip makes a new version
            extent.unpack(damaged)


def test_an_intact_header_of_another_version_is_refused_by_name():
    packed = bytearray(header().pack())
    start = extent.MAGIC + struct.pack("<I", 2)
    packed[:16] = start + struct.pack("<I", zlib.crc32(start))
    with pytest.raises(IncompatibleImage, match="extent format 2: this server reads 1") as refused:
        extent.unpack(packed)
    assert "Export" in refused.value.hint


@pytest.mark.parametrize(
    "forged",
    [
        {"nbytes": 20_000},
        {"nbytes": 0, "length": 4096},
        {"length": 4096},
    ],
)
def test_a_header_that_contradicts_itself_is_refused(forged):
    with pytest.raises(ImageCorrupt, match="contradicts itself"):
        extent.unpack(replace(header(), ref=replace(header().ref, **forged)).pack())


def test_a_cut_header_is_refused():
    for length in range(0, 4096, 64):
        with pytest.raises(ImageCorrupt):
            extent.unpack(header().pack()[:length])


# -- the whole extent ------------------------------------------------------------------------------
def test_an_extent_comes_back(make_meta, make_row):
    meta = make_meta()
    disk, row = Disk(), make_row(meta)
    ref = written(meta, row, disk)
    assert len(disk.bytes) == ref.offset + ref.length
    assert read(disk, ref) == codec.encode_header(meta, row) + bytes(row)


def test_every_flipped_bit_of_an_extent_is_found(make_meta, make_row):
    """Header, its unused bytes, image and the zeros behind it."""
    meta = make_meta()
    disk = Disk()
    ref = written(meta, make_row(meta), disk)
    parts = [memoryview(bytearray(ref.nbytes))]
    for bit in range(ref.offset * 8, (ref.offset + ref.length) * 8):
        disk.bytes[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ImageCorrupt) as found:
            extent_io.read_extent(disk, 0, ref, parts)
        assert found.value.detail.startswith("slab 3, offset 4096: ")
        disk.bytes[bit // 8] ^= 1 << bit % 8
    read(disk, ref)


def test_without_the_checks_a_flipped_bit_is_served(make_meta, make_row, monkeypatch):
    """The negative control of the test above: its flips do reach the reader."""
    meta = make_meta()
    disk = Disk()
    ref = written(meta, make_row(meta), disk)
    good = read(disk, ref)
    disk.bytes[ref.offset + ref.length - 4096 + 5] ^= 1
    with pytest.raises(ImageCorrupt, match="MiB 0 of 1 is damaged"):
        read(disk, ref)
    real = extent_io.ImageHash
    at_write = extent_io.hash_image([memoryview(good)])

    class Blind(real):
        digest = at_write.digest

        def add(self, piece, padding):
            super().add(piece, padding)
            return at_write.checksums[0]

    monkeypatch.setattr(extent_io, "ImageHash", Blind)
    assert read(disk, ref) != good


def test_the_damaged_mib_is_named(make_meta, make_row):
    meta = make_meta(StateFamily(name="wkv", shape=(5, MIB // 8), dtype="F32"))
    disk = Disk()
    ref = written(meta, make_row(meta), disk, offset=0)
    assert len(disk.bytes) == ref.length
    for mib in range(3):
        disk.bytes[4096 + mib * MIB + 77] ^= 4
        with pytest.raises(ImageCorrupt, match=rf"slab 3, offset 0: MiB {mib} of 3 is damaged"):
            read(disk, ref)
        disk.bytes[4096 + mib * MIB + 77] ^= 4
    del disk.bytes[2 * MIB + 4096 + 5 :]
    with pytest.raises(ImageCorrupt, match="MiB 2 of 3 is cut off"):
        read(disk, ref)


def test_another_intact_image_is_not_taken_for_this_one(make_meta, make_row):
    meta = make_meta()
    disk = Disk()
    ref = written(meta, make_row(meta, 1), disk)
    other = written(meta, make_row(meta, 2), disk)  # the same place, written again
    with pytest.raises(ImageCorrupt, match="here lies blake3:"):
        read(disk, ref)
    assert read(disk, other)
    moved = Disk()
    moved.bytes = bytearray(4096) + disk.bytes  # a disk that returns a block from elsewhere
    with pytest.raises(ImageCorrupt, match="here lies"):
        read(moved, replace(other, offset=8192))


def test_the_digest_is_checked_beside_the_checksums(make_meta, make_row):
    meta = make_meta()
    disk = Disk()
    ref = written(meta, make_row(meta), disk)
    lie = "blake3:" + "00" * 32
    told = extent.unpack(disk.bytes[4096:8192])
    disk.bytes[4096:8192] = replace(told, ref=replace(ref, digest=lie)).pack()
    with pytest.raises(ImageCorrupt, match="the bytes have the digest"):
        read(disk, replace(ref, digest=lie))


@pytest.mark.parametrize("nbytes", [-1, 0, 4095, 1 << 62])
def test_a_ref_that_names_no_extent_is_refused(nbytes):
    with pytest.raises(ImageCorrupt, match="has no extent of"):
        extent_io.check_ref(replace(header().ref, nbytes=nbytes))


def test_a_failing_disk_is_damage(make_meta, make_row):
    class Broken(Disk):
        def read(self, fd, buffers, offset):
            raise OSError(5, "Input/output error")

    meta = make_meta()
    ref = written(meta, make_row(meta), Disk())
    with pytest.raises(ImageCorrupt, match="slab 3, offset 4096: cannot be read: Input/output"):
        read(Broken(), ref)
