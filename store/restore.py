"""A data folder from a backup: copied, compared bit by bit, and only then given its name."""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from statevisor.hypervisor.commands import FsckView
from statevisor.hypervisor.errors import FileCorrupt, InvalidRequest, Unavailable
from statevisor.store.backup import FORMAT, IMAGES, MANIFEST
from statevisor.store.db import FILE
from statevisor.store.files import Files
from statevisor.store.fsck import SCHEMA, check_folder
from statevisor.store.workplace import workplace

_CHUNK: Final = 1 << 20
_WHICH: Final = "Name what `statevisor admin backup` wrote: a folder, or a file ending in .tar."
#: What a backup holds; a name that is none of these is never written.
_MEMBER: Final = re.compile(rf"(?:{re.escape(FILE)}|{re.escape(MANIFEST)}|{IMAGES}/\w+\.slab)\Z")


def restore(backup: Path, folder: Path) -> FsckView:
    """Make a data folder of a backup, a folder or a .tar file; return what was compared. Slow.

    Until then it lies in `FOLDER.partial`. A failure leaves nothing; what a kill leaves the next
    restore takes away. Raises: InvalidRequest (this is no backup), Conflict (the folder exists, or
    is being made), FileCorrupt (a bit of the backup has changed), Unavailable (the disk fails).
    """
    goal = Path(os.path.abspath(folder))
    if not goal.parent.is_dir():
        raise InvalidRequest(f"there is no folder {goal.parent}", hint="Make it first.")
    with _disk(backup, goal), workplace(goal) as work:
        (work / IMAGES).mkdir()
        _copy(backup, work)
        view = _compared(backup, work)
        for inner in (work / IMAGES, work):
            Files().sync_folder(inner)
        work.rename(goal)
        Files().sync_folder(goal.parent)
    return view


def _copy(backup: Path, work: Path) -> None:
    found = set()
    for name, source in _members(backup):
        if not _MEMBER.match(name):
            raise InvalidRequest(f"{backup} holds {name!r}, as no backup does", hint=_WHICH)
        with (work / name).open("xb") as out:
            shutil.copyfileobj(source, out, _CHUNK)
            out.flush()
            os.fsync(out.fileno())
        found.add(name)
    if not {FILE, MANIFEST} <= found:
        raise InvalidRequest(f"{backup} is no whole backup", hint=_WHICH)
    if _format(work / MANIFEST) != FORMAT:
        raise InvalidRequest(
            f"{backup} is a backup of another format", hint="Use the program that wrote it."
        )


def _format(manifest: Path) -> object:
    try:
        return json.loads(manifest.read_bytes())["format"]
    except (ValueError, TypeError, KeyError):
        return None


def _members(backup: Path) -> Iterator[tuple[str, BinaryIO]]:
    if not backup.is_dir():
        yield from _unpacked(backup)
        return
    for path in (backup / FILE, backup / MANIFEST, *sorted((backup / IMAGES).glob("*.slab"))):
        if path.exists():
            with path.open("rb") as source:
                yield str(path.relative_to(backup)), source


def _unpacked(backup: Path) -> Iterator[tuple[str, BinaryIO]]:
    with tarfile.open(backup, "r:") as tar:
        for member in tar:
            source = tar.extractfile(member) if member.isreg() else None
            if source is None:
                raise InvalidRequest(f"{backup} holds {member.name!r}, no file", hint=_WHICH)
            yield member.name, source  # type: ignore[misc]


def _compared(backup: Path, work: Path) -> FsckView:
    view = check_folder(work)
    wrong = [one for one in view.findings if one.kind != SCHEMA]  # a start brings that up
    if wrong:
        raise FileCorrupt(
            f"{len(wrong)} things in {backup} are wrong, the first: {wrong[0].detail}",
            hint="Take another backup; `statevisor admin fsck --data` tells the rest of a folder.",
        )
    return view


@contextmanager
def _disk(backup: Path, goal: Path) -> Iterator[None]:
    """Turn what the disk and the file say into our words."""
    try:
        yield
    except tarfile.TarError as error:
        raise InvalidRequest(f"{backup} is no whole tar file: {error}", hint=_WHICH) from error
    except FileNotFoundError as error:
        raise InvalidRequest(f"there is no {error.filename}", hint="Check the path.") from error
    except OSError as error:
        raise Unavailable(
            f"cannot restore {backup} to {goal}: {error.strerror}",
            hint="Look at the disks that it is read from and goes to.",
        ) from error
