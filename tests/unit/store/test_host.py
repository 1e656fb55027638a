"""The host tier: exact frames, verified rows, nothing lost and nothing held twice."""

from __future__ import annotations

import random
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from statevisor.hypervisor.errors import ImageCorrupt, NoFreeSlot
from statevisor.hypervisor.image_ports import Frame, HostFrames
from statevisor.store.host import HostTier

ROW = 1000  # no power of two


@pytest.fixture(params=["xxh3", "crc32"])
def tier(request):
    memory = memoryview(bytearray(ROW * 3 + 999))
    return (
        HostTier(memory, ROW)
        if request.param == "xxh3"
        else HostTier(memory, ROW, checksum=zlib.crc32)
    )


def fill(tier, actor, byte, segment=1, absorbed=5):
    frame = tier.lend(actor, segment, absorbed)
    frame[:] = bytes([byte]) * ROW
    tier.seal(actor)


def test_it_is_the_port(tier):
    port: HostFrames = tier
    assert port.capacity == 3
    assert tier.capacity_bytes == 3 * ROW


def test_a_row_comes_back(tier):
    fill(tier, "a", 1, segment=9, absorbed=77)
    assert bytes(tier.view("a")) == b"\x01" * ROW
    assert tier.get("a") == Frame(actor_id="a", segment=9, absorbed=77)
    assert bytes(tier.view("a")) == b"\x01" * ROW  # inclusive: reading keeps it
    assert (tier.used, tier.used_bytes) == (1, ROW)


def test_the_budget_is_used_to_the_last_whole_row(tier):
    for k, actor in enumerate("abc"):
        fill(tier, actor, k)
    with pytest.raises(NoFreeSlot, match="all 3 frames"):
        tier.lend("d", 1, 1)
    tier.drop("b")
    fill(tier, "d", 9)
    assert [bytes(tier.view(a))[0] for a in "acd"] == [0, 2, 9]
    tier.check()


def test_no_memory_is_no_frames():
    tier = HostTier(memoryview(b""), ROW)
    assert tier.capacity == 0
    with pytest.raises(NoFreeSlot):
        tier.lend("a", 1, 1)
    tier.check()


def test_a_frame_that_is_not_filled_is_never_served(tier):
    tier.lend("a", 1, 1)
    with pytest.raises(KeyError, match="not filled yet"):
        tier.view("a")
    assert tier.oldest() == ()
    assert tier.used == 1
    tier.drop("a")
    assert tier.get("a") is None
    tier.check()


def test_misuse_raises_and_changes_nothing(tier):
    fill(tier, "a", 1)
    with pytest.raises(ValueError, match="holds a frame already"):
        tier.lend("a", 1, 2)
    with pytest.raises(ValueError, match="sealed already"):
        tier.seal("a")
    with pytest.raises(KeyError):
        tier.seal("b")
    with pytest.raises(KeyError):
        tier.view("b")
    tier.drop("a")
    with pytest.raises(KeyError):
        tier.drop("a")
    tier.check()
    assert tier.used == 0


def test_every_flipped_bit_is_found_and_the_frame_dropped(tier):
    for bit in range(ROW * 8):
        fill(tier, "a", 0x5A)
        tier.view("a")[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ImageCorrupt, match="row of a changed in host memory"):
            tier.view("a")
        assert tier.get("a") is None
    tier.check()
    assert tier.used == 0


def test_without_a_checksum_a_flip_would_be_served():
    blind = HostTier(memoryview(bytearray(ROW)), ROW, checksum=lambda row: 0)
    fill(blind, "a", 1)
    blind.view("a")[3] ^= 1
    assert bytes(blind.view("a")) != b"\x01" * ROW


def test_the_least_recently_sealed_comes_first(tier):
    fill(tier, "a", 1)
    tier.lend("b", 1, 1)
    fill(tier, "c", 3)
    tier.seal("b")
    assert tier.oldest() == ("a", "c", "b")
    tier.drop("a")
    fill(tier, "a", 1)
    assert tier.oldest() == ("c", "b", "a")


def test_rows_do_not_touch_each_other(tier):
    rng, rows = random.Random(3), {}
    for step in range(400):
        actor = rng.choice("abcdef")
        if tier.get(actor):
            assert bytes(tier.view(actor)) == rows[actor]
            tier.drop(actor)
        elif tier.used < tier.capacity:
            rows[actor] = rng.randbytes(ROW)
            tier.lend(actor, step, step)[:] = rows[actor]
            tier.seal(actor)
        tier.check()
        for held in tier.oldest():
            assert bytes(tier.view(held)) == rows[held]


def test_the_check_finds_a_lost_frame(tier):
    tier._free.pop()
    with pytest.raises(AssertionError):
        tier.check()


def test_a_row_has_a_size():
    with pytest.raises(ValueError, match="0 bytes"):
        HostTier(memoryview(b""), 0)


def test_rows_are_sealed_and_read_on_many_threads():
    tier = HostTier(memoryview(bytearray(8 * ROW)), ROW)

    def live(actor: str) -> int:
        for turn in range(200):
            tier.lend(actor, 1, turn)[:] = bytes([turn % 256]) * ROW
            tier.seal(actor)
            assert bytes(tier.view(actor)) == bytes([turn % 256]) * ROW
            tier.oldest()
            tier.drop(actor)
        return turn

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(live, "abcdefgh")) == [199] * 8
    tier.check()
    assert tier.used == 0
