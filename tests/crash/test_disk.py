"""The disk that loses power keeps what a finished sync covers, and nothing else for sure."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from disk import SECTOR, Call, Disk, Entry

ROOT = Path("/r")
FD, FOLDER_FD = 5, 6


def call(kind, fd=FD, number=0, data=b""):
    return Entry(kind, fd, number, data)


def outcomes(*calls):
    """Every set of files that a failure behind these calls was seen to leave."""
    disk = Disk(ROOT)
    for one in calls:
        disk.play(one)
    return {tuple(sorted(disk.fail(random.Random(seed)).items())) for seed in range(200)}


MADE = (call(Call.OPEN, number=1, data=b"/r/f"),)
NAMED = (
    *MADE,
    call(Call.OPEN, FOLDER_FD, data=b"/r"),
    call(Call.SYNC_BEGIN, FOLDER_FD),
    call(Call.SYNC_END, FOLDER_FD),
)
SYNC = (call(Call.SYNC_BEGIN), call(Call.SYNC_END))


def test_what_was_synced_is_kept():
    assert outcomes(*NAMED, call(Call.WRITE, data=b"x"), *SYNC) == {(("f", b"x"),)}


def test_what_was_not_synced_may_be_lost():
    left = outcomes(*NAMED, call(Call.WRITE, data=b"x"))
    assert left == {(("f", b"x"),), (("f", b""),)}


def test_sectors_are_lost_one_by_one():
    left = outcomes(*NAMED, call(Call.WRITE, data=b"x" * 2 * SECTOR))
    zeros, full = bytes(SECTOR), b"x" * SECTOR
    assert {dict(files)["f"] for files in left} == {b"", full, zeros + full, full + full}


def test_a_sync_covers_nothing_that_came_while_it_ran():
    begin, end = SYNC
    left = outcomes(*NAMED, begin, call(Call.WRITE, data=b"x"), end)
    assert (("f", b""),) in left


def test_a_name_needs_a_sync_of_its_folder():
    assert () in outcomes(*MADE, call(Call.WRITE, data=b"x"), *SYNC)


@pytest.mark.parametrize("synced", [False, True])
def test_a_removed_name_may_come_back_until_its_folder_is_synced(synced):
    sync = (call(Call.SYNC_BEGIN, FOLDER_FD), call(Call.SYNC_END, FOLDER_FD)) if synced else ()
    left = outcomes(*NAMED, call(Call.UNLINK, -1, data=b"/r/f"), *sync)
    assert left == ({()} if synced else {(), (("f", b""),)})


def test_a_cut_needs_a_sync():
    cut = call(Call.TRUNCATE, number=0)
    left = outcomes(*NAMED, call(Call.WRITE, data=b"x"), *SYNC, cut)
    assert left == {(("f", b"x"),), (("f", b""),)}
