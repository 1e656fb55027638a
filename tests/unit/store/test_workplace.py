"""A workplace: taken from nobody who is alive, left to nobody but the next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from statevisor.hypervisor.errors import Conflict
from statevisor.store.workplace import workplace, workplace_of

KILLED = """
import os, sys
from pathlib import Path
from statevisor.store.workplace import workplace
with workplace(Path(sys.argv[1])) as work:
    for name in sys.argv[2:]:
        (work / name).write_text("half")
    os._exit(9)
"""


@pytest.fixture
def goal(tmp_path: Path) -> Path:
    return tmp_path / "new"


def leave(goal: Path, *names: str) -> None:
    """What a process leaves that is killed at work."""
    ran = subprocess.run([sys.executable, "-P", "-c", KILLED, str(goal), *names], check=False)
    assert ran.returncode == 9


def test_what_is_made_gets_its_name_and_nothing_is_left(goal: Path) -> None:
    with workplace(goal) as work:
        (work / "a").write_text("whole")
        (work.parent / "b").write_text("scrap")
        work.rename(goal)
    assert os.listdir(goal.parent) == ["new"]
    assert os.listdir(goal) == ["a"]


def test_a_failure_leaves_nothing(goal: Path) -> None:
    with pytest.raises(FileNotFoundError), workplace(goal) as work:
        (work / "a" / "b").write_text("half")
    assert os.listdir(goal.parent) == []


def test_what_a_kill_left_is_taken_away(goal: Path) -> None:
    leave(goal, "a", "b")
    assert workplace_of(goal).exists()
    with workplace(goal) as work:
        assert os.listdir(work) == []
        (work / "c").write_text("whole")
        work.rename(goal)
    assert os.listdir(goal.parent) == ["new"]
    assert os.listdir(goal) == ["c"]


def test_it_is_taken_away_without_following_links(goal: Path, tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "file").write_text("theirs")
    leave(goal)
    (workplace_of(goal) / "link").symlink_to(tmp_path / "others")
    with workplace(goal):
        pass
    assert (tmp_path / "others" / "file").read_text() == "theirs"


def test_an_empty_folder_is_taken(goal: Path) -> None:
    workplace_of(goal).mkdir()
    with workplace(goal) as work:
        assert work.is_dir()


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_somebody_else_put_there_stays(goal: Path, kind: str) -> None:
    place = workplace_of(goal)
    if kind == "folder":
        place.mkdir()
        (place / "theirs").touch()
    else:
        place.touch()
    with pytest.raises(Conflict, match="nothing that broke off left it"), workplace(goal):
        pass
    assert place.is_file() or os.listdir(place) == ["theirs"]


def test_two_do_not_work_in_one_place(goal: Path) -> None:
    with workplace(goal) as work:
        (work / "a").write_text("half")
        with pytest.raises(Conflict, match="by another process"), workplace(goal):
            pass
        assert os.listdir(work) == ["a"]


def test_a_name_that_is_taken_is_refused_and_what_was_left_goes(goal: Path) -> None:
    leave(goal, "a")
    goal.mkdir()
    with pytest.raises(Conflict, match="exists"), workplace(goal):
        pass
    assert os.listdir(goal.parent) == ["new"]
