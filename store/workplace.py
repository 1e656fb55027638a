"""`NAME.partial`: where a folder or file is made until it is whole and gets its name.

Who is killed leaves the workplace behind, with a mark in it; whoever makes the same thing next
empties it and begins anew. The mark is locked while somebody is at work. A folder without a mark is
not ours and stays.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from statevisor.hypervisor.errors import Conflict, Unavailable
from statevisor.store.db import FolderLock

_MARK: Final = "statevisor-at-work"
_WHOLE: Final = "whole"


def workplace_of(goal: Path) -> Path:
    """The folder that it is made in."""
    return goal.with_name(f"{goal.name}.partial")


@contextmanager
def workplace(goal: Path) -> Iterator[Path]:
    """An empty folder; what is finished in it is to be renamed to `goal`, the rest goes at the end.

    Raises: Conflict (`goal` exists, somebody else makes it, or the place is another's), OSError.
    """
    place = workplace_of(goal)
    mark = _enter(place)
    try:
        if os.path.lexists(goal):
            raise Conflict(f"{goal} exists", hint="Name a new one, or remove that one.")
        _empty(place)
        inner = place / _WHOLE
        inner.mkdir()
        yield inner
    finally:
        # What stays if the disk fails bears the mark.
        with suppress(OSError):
            _empty(place)
            (place / _MARK).unlink()
            place.rmdir()
        mark.release()


def _enter(place: Path) -> FolderLock:
    """Take the place, a new one or that of somebody who was killed."""
    with suppress(FileExistsError):
        place.mkdir()
    # who was killed before there was a mark left an empty folder
    if not place.is_dir() or (any(place.iterdir()) and not (place / _MARK).is_file()):
        raise Conflict(
            f"{place} exists, and nothing that broke off left it",
            hint="Name another place, or move that one away.",
        )
    try:
        return FolderLock(place, _MARK).acquire()
    except Unavailable as error:
        raise Conflict(
            f"{place} is being worked in by another process", hint="Wait for it to end."
        ) from error


def _empty(place: Path) -> None:
    """Leave nothing but the mark. Raises: OSError."""
    for path in place.iterdir():
        if path.name == _MARK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
