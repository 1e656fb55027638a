"""Slab files: growing, first fit, giving back, and the free map that follows from the catalog."""

from __future__ import annotations

import os

import pytest

from statevisor.hypervisor.errors import QuotaExceeded, StatevisorError, Unavailable
from statevisor.hypervisor.records import ImageRef
from statevisor.store.files import Files
from statevisor.store.slabs import SlabConfig, Slabs, place_of

KIB = 1024
CONFIG = SlabConfig(slab_bytes=64 * KIB, step_bytes=16 * KIB, threads=1)


def ref(slab, offset, length):
    return ImageRef(
        digest=f"blake3:{offset}",
        nbytes=length - 4096,
        slab=slab,
        offset=offset,
        length=length,
        layout="l",
        weights="w",
        build="b",
    )


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data" / "slabs"


@pytest.fixture
def open_slabs(folder):
    opened = []

    def reopen(live=(), config=CONFIG, files=None):
        for slabs in opened:
            slabs.close()
        opened[:] = [Slabs.open(folder, live, config, files or Files())]
        return opened[0]

    yield reopen
    for slabs in opened:
        slabs.close()


def take(slabs, length):
    while (place := slabs.take(length)) is None:
        growth = slabs.plan(length)
        slabs.adopt(growth, slabs.perform(growth))
    slabs.check()
    return place


def remove(slabs):
    for slab in slabs.trim():
        slabs.remove(slab)
    slabs.check()


def sizes(folder):
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def test_a_slab_grows_in_written_steps(open_slabs, folder):
    slabs = open_slabs()
    assert sizes(folder) == {}
    assert [take(slabs, 8 * KIB).offset for _ in range(3)] == [0, 8 * KIB, 16 * KIB]
    assert sizes(folder) == {"00000001.slab": 32 * KIB}
    stat = (folder / "00000001.slab").stat()
    assert stat.st_blocks * 512 >= 32 * KIB, "the zeros are written, not holes"
    assert slabs.used_bytes == 24 * KIB
    assert slabs.file_bytes == 32 * KIB


def test_a_full_slab_is_followed_by_another_and_never_exceeds_its_size(open_slabs, folder):
    slabs = open_slabs()
    places = [take(slabs, 24 * KIB) for _ in range(5)]
    assert [(place.slab, place.offset) for place in places] == [
        (1, 0),
        (1, 24 * KIB),
        (2, 0),
        (2, 24 * KIB),
        (3, 0),
    ]
    assert max(sizes(folder).values()) <= 64 * KIB
    assert take(slabs, 16 * KIB).slab == 1  # what was left of the first is used too


def test_a_bigger_image_gets_a_slab_of_its_own(open_slabs, folder):
    slabs = open_slabs()
    small, big = take(slabs, 8 * KIB), take(slabs, 100 * KIB)
    assert (big.slab, big.offset) == (2, 0)
    assert take(slabs, 8 * KIB).slab == small.slab
    slabs.give(big)
    remove(slabs)
    assert sizes(folder) == {"00000001.slab": 16 * KIB}


def test_empty_slabs_go_but_for_one_that_is_kept_ready(open_slabs, folder):
    slabs = open_slabs()
    places = [take(slabs, 64 * KIB) for _ in range(3)]
    for place in places:
        slabs.give(place)
        remove(slabs)
    assert list(sizes(folder)) == ["00000001.slab"]
    assert take(slabs, 64 * KIB).slab == 1
    assert take(slabs, 64 * KIB).slab == 4  # ids are not used again


def test_a_growing_slab_is_not_removed(open_slabs):
    slabs = open_slabs()
    place = take(slabs, 16 * KIB)
    slabs.give(take(slabs, 64 * KIB))
    take(slabs, 40 * KIB)  # the second slab keeps room enough for the first to be superfluous
    growth = slabs.plan(32 * KIB)
    assert growth.slab is slabs.find(1)
    slabs.give(place)
    assert slabs.trim() == []
    slabs.adopt(growth, slabs.perform(growth))
    slabs.check()
    assert [slab.id for slab in slabs.trim()] == [1]


def test_room_that_somebody_waits_for_is_not_removed(open_slabs):
    slabs = open_slabs()
    take(slabs, 8 * KIB)
    growth = slabs.plan(100 * KIB)
    slabs.adopt(growth, slabs.perform(growth))
    assert slabs.trim() == []
    place = slabs.take(100 * KIB)
    slabs.give(place)
    assert [slab.id for slab in slabs.trim()] == [2]


def test_freed_room_is_used_first_fit(open_slabs):
    slabs = open_slabs()
    a, _, c = (take(slabs, 16 * KIB) for _ in range(3))
    slabs.give(c)
    slabs.give(a)
    assert take(slabs, 16 * KIB) == a
    assert take(slabs, 8 * KIB).offset == c.offset
    slabs.check()


def test_a_double_free_raises(open_slabs):
    slabs = open_slabs()
    place = take(slabs, 8 * KIB)
    slabs.give(place)
    with pytest.raises(StatevisorError, match="freed twice"):
        slabs.give(place)
    with pytest.raises(StatevisorError, match="no such slab"):
        slabs.give(place_of(ref(77, 0, 8 * KIB)))
    slabs.check()


def test_room_is_wanted_ahead_of_need(open_slabs):
    slabs = open_slabs()
    take(slabs, 8 * KIB)
    assert slabs.wants_room(8 * KIB)  # less than a step is left
    growth = slabs.plan(16 * KIB)
    slabs.adopt(growth, slabs.perform(growth))
    assert not slabs.wants_room(8 * KIB)
    assert not slabs.wants_room(100 * KIB)  # its own file is made when it comes


# -- opening ---------------------------------------------------------------------------------------
def test_what_the_catalog_does_not_name_is_free(open_slabs):
    slabs = open_slabs()
    a, b, _ = (take(slabs, 16 * KIB) for _ in range(3))
    slabs = open_slabs([ref(1, b.offset, b.length)])
    slabs.check()
    assert slabs.used_bytes == 16 * KIB
    assert take(slabs, 16 * KIB) == a
    assert take(slabs, 16 * KIB).offset == 32 * KIB


def test_a_ref_named_twice_is_one_extent(open_slabs):
    take(open_slabs(), 16 * KIB)
    slabs = open_slabs([ref(1, 0, 16 * KIB), ref(1, 0, 16 * KIB)])
    assert slabs.used_bytes == 16 * KIB


def test_overlapping_refs_are_refused(open_slabs, folder):
    take(open_slabs(), 16 * KIB)
    with pytest.raises(StatevisorError, match="overlaps"):
        open_slabs([ref(1, 0, 16 * KIB), ref(1, 8 * KIB, 8 * KIB)])
    open_slabs()  # the folder was let go


def test_slabs_that_nobody_needs_go_at_the_start(open_slabs, folder):
    slabs = open_slabs()
    for _ in range(3):
        take(slabs, 64 * KIB)
    take(slabs, 100 * KIB)
    open_slabs([ref(2, 0, 64 * KIB)])
    assert list(sizes(folder)) == ["00000001.slab", "00000002.slab"]


def test_a_missing_file_costs_its_own_images_only(open_slabs, folder):
    slabs = open_slabs()
    lost, kept = take(slabs, 64 * KIB), take(slabs, 64 * KIB)
    (folder / "00000001.slab").unlink()
    slabs = open_slabs([ref(1, 0, 64 * KIB), ref(2, 0, 64 * KIB)])
    assert slabs.find(1) is None
    assert slabs.used_bytes == 64 * KIB
    assert take(slabs, 8 * KIB).slab == 3  # the id of the lost one is not used again
    slabs.give(lost)
    slabs.give(kept)
    slabs.check()


def test_a_cut_file_costs_the_images_behind_the_cut(open_slabs, folder):
    take(open_slabs(), 64 * KIB)
    os.truncate(folder / "00000001.slab", 40 * KIB + 5)
    slabs = open_slabs([ref(1, 0, 32 * KIB), ref(1, 32 * KIB, 32 * KIB)])
    slabs.check()
    assert slabs.used_bytes == 32 * KIB
    slabs.give(place_of(ref(1, 32 * KIB, 32 * KIB)))


def test_other_files_are_left_alone(open_slabs, folder):
    folder.mkdir(parents=True)
    (folder / "README").write_text("hands off")
    (folder / "1.slab").write_text("not ours")
    open_slabs()
    assert sorted(sizes(folder)) == ["1.slab", "README"]


def test_two_owners_of_one_folder_are_refused(open_slabs, folder):
    open_slabs()
    with pytest.raises(Unavailable, match="another process"):
        Slabs.open(folder, [], CONFIG, Files())


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot use"):
        Slabs.open(tmp_path / "file" / "slabs", [], CONFIG, Files())


# -- limits and failures ---------------------------------------------------------------------------
def test_the_limit_counts_whole_files(open_slabs):
    slabs = open_slabs(
        config=SlabConfig(slab_bytes=64 * KIB, step_bytes=16 * KIB, limit_bytes=81_920)
    )
    assert slabs.capacity_bytes == 81_920
    place = take(slabs, 64 * KIB)
    take(slabs, 16 * KIB)
    with pytest.raises(QuotaExceeded, match="81920 bytes"):
        slabs.plan(16 * KIB)
    slabs.give(place)
    assert take(slabs, 16 * KIB).slab == 1  # the refusal left no growth behind


def test_a_failed_growth_leaves_nothing(open_slabs, folder):
    class Full(Files):
        def write(self, fd, buffers, offset):
            raise OSError(28, "No space left on device")

    slabs = open_slabs(files=Full())
    growth = slabs.plan(8 * KIB)
    with pytest.raises(OSError, match="No space"):
        slabs.perform(growth)
    slabs.abandon()
    assert sizes(folder) == {}
    assert slabs.file_bytes == 0
    slabs.plan(8 * KIB)


@pytest.mark.parametrize(
    "bad",
    [
        {"slab_bytes": 100},
        {"step_bytes": 100},
        {"step_bytes": 0},
        {"slab_bytes": 4096, "step_bytes": 8192},
        {"threads": 0},
    ],
)
def test_sizes_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match=r"."):
        SlabConfig(**bad)
