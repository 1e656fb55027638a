"""Which schema a data folder's catalog has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from statevisor.migrations import run
from statevisor.store.db import FILE, FolderLock, migrate, open_engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """Schema revisions of a catalog and of this program."""

    current: str | None  #: None: there is no catalog yet
    head: str


def revision(folder: Path) -> Revision:
    """Look, and change nothing. Raises: DBAPIError (the file is no database)."""
    path = folder / FILE
    if not path.exists():
        return Revision(current=None, head=run.head())
    engine = open_engine(path, connections=1, read_only=True)
    try:
        with engine.connect() as conn:
            return Revision(current=run.current(conn), head=run.head())
    finally:
        engine.dispose()


def upgrade(folder: Path) -> Revision:
    """Bring the catalog of a folder at rest to this program's schema.

    Raises: Unavailable (a server has the folder, the disk fails), StatevisorError (it is newer).
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder).acquire()
    try:
        migrate(folder)
        return revision(folder)
    finally:
        lock.release()
