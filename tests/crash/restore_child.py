"""Kills a restore at its file operations: `restore_child.py FOLDER STRIDE [twice|refuses|early]`.

FOLDER holds `copy`, a backup. It dies before every operation, or every STRIDE-th. Prints one JSON
object: how often it was killed, and what was wrong behind any of it. `twice` kills in the middle,
and then the restore that follows. `refuses` and `early` take a guard out: what a kill left is not
known again; the folder bears its name from the beginning.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from statevisor.hypervisor.errors import Conflict
from statevisor.store import restore as module
from statevisor.store import workplace
from statevisor.store.db import FolderLock
from statevisor.store.restore import restore

#: What Python is asked to do to files, told before it is done.
OPERATIONS = ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "fcntl.flock")
#: Of a second restore: how far the first one came, as a part of its way.
MIDDLE = 0.6


def child(work: Callable[[], object]) -> int:
    """Do it in a process of its own; returns its exit code, below 0 if it was killed."""
    pid = os.fork()
    if not pid:
        try:
            work()
        except Conflict:
            os._exit(4)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def doomed(backup: Path, goal: Path, point: int) -> None:
    """Restore, and die before file operation number `point`."""
    steps = count(1)

    def step(event: str, _: object) -> None:
        if event in OPERATIONS and next(steps) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(step)
    restore(backup, goal)


def files(folder: Path) -> dict[str, bytes]:
    """All files with their bytes, but for the locks of who looked at them."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@contextmanager
def early(goal: Path) -> Iterator[Path]:
    goal.mkdir()
    yield goal.parent / goal.name


def refuses(place: Path) -> FolderLock:
    if place.exists():
        raise Conflict
    place.mkdir()
    return FolderLock(place, workplace._MARK).acquire()


def faults_behind(backup: Path, goal: Path, whole: dict[str, bytes]) -> Iterator[str]:
    """What is wrong with what a kill has left, and with the restore that follows."""
    there = goal.exists()
    if there and files(goal) != whole:
        yield "it has its name and is not whole"
    code = child(lambda: restore(backup, goal))
    if code != (4 if there else 0):
        yield f"the next restore ended with {code}"
    elif files(goal) != whole:
        yield "what the next restore made is not whole"
    elif set(os.listdir(goal.parent)) != {goal.name}:
        yield f"something is left: {os.listdir(goal.parent)}"


def main() -> None:
    base, stride, words = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if "refuses" in words:
        workplace._enter = refuses
    if "early" in words:
        module.workplace = early
    backup, home = base / "copy", base / "home"
    goal = home / "new"
    home.mkdir()
    assert child(lambda: restore(backup, goal)) == 0
    whole = files(goal)
    shutil.rmtree(home)
    first = 0
    if "twice" in words:
        operations = next(n for n in count(1) if not _killed(backup, goal, n))
        first = int(operations * MIDDLE)
    faults, killed = [], 0
    for point in count(1, stride):
        home.mkdir()
        if first:
            assert child(lambda: doomed(backup, goal, first)) == -signal.SIGKILL
        code = child(lambda point=point: doomed(backup, goal, point))
        killed += code == -signal.SIGKILL
        faults += [f"operation {point}: {one}" for one in faults_behind(backup, goal, whole)]
        shutil.rmtree(home)
        if code != -signal.SIGKILL or faults:
            break
    sys.stdout.write(json.dumps({"killed": killed, "faults": faults}) + "\n")


def _killed(backup: Path, goal: Path, point: int) -> bool:
    goal.parent.mkdir()
    code = child(lambda: doomed(backup, goal, point))
    shutil.rmtree(goal.parent)
    return code == -signal.SIGKILL


if __name__ == "__main__":
    main()
