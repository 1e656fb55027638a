"""fsck of a data folder that no server has open: compares, repairs, and starts over from images.

A lost catalog cannot be made again: what an actor said is in its journal alone. But every image
says what it is, so each comes back as an actor of its own, which begins where the image stands.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Connection, select
from sqlalchemy.exc import DBAPIError

from statevisor.hypervisor.catalog_port import Checkpoint, Finding, Guard
from statevisor.hypervisor.commands import FsckView
from statevisor.hypervisor.errors import (
    ImageCorrupt,
    IncompatibleImage,
    InvalidRequest,
    Unavailable,
)
from statevisor.hypervisor.inspector import finding, misplaced
from statevisor.hypervisor.records import ImageRef
from statevisor.store import actors, brood_pages, checkpoints, keeping, rowcheck
from statevisor.store.backup import IMAGES
from statevisor.store.db import FILE, FolderLock, begin, finish, open_engine, translated
from statevisor.store.extent_io import check_ref, verify_extent
from statevisor.store.files import Files
from statevisor.store.owners import current
from statevisor.store.prepared import Prepared
from statevisor.store.rebuild import rebuild
from statevisor.store.schema import revision
from statevisor.store.scope import Scope
from statevisor.store.slabs import slab_name
from statevisor.store.tables import actor
from statevisor.store.tails import Tails

_SEGMENTS = 64
_BROODS = 500
_AWAITING = Prepared(
    select(actor.c.id).where(actor.c.deleted_us.is_(None), actor.c.quarantine.is_(None))
)
LOST, UNREADABLE, SCHEMA = "catalog_lost", "catalog_unreadable", "schema"
START_OVER = (
    "Restore a backup. Without one, a repair makes an actor of every whole image: "
    "states come back, but no names, no text and no lineage."
)


def is_lost(folder: Path) -> bool:
    """Whether a folder has images but no catalog: a server would take all of them for free."""
    path = folder / FILE
    there = path.exists() and path.stat().st_size > 0
    return not there and any((folder / IMAGES).glob("*.slab"))


def check_not_lost(folder: Path) -> None:
    """Raises: Unavailable, if a server on this folder would take all its images for free."""
    if is_lost(folder):
        raise Unavailable(
            f"{folder} has images but no catalog: it is damaged, or a backup that broke off",
            hint="Restore a backup, or see `statevisor admin fsck --data`.",
        )


def check_folder(folder: Path, *, repair: bool = False, model: str = "demo") -> FsckView:
    """Check a whole data folder. Slow.

    `model` is what recovered actors run on. Raises: Unavailable (a server has the folder, the disk
    fails), InvalidRequest (there is no such folder).
    """
    if not folder.is_dir():
        raise InvalidRequest(f"there is no data folder {folder}")
    lock = FolderLock(folder).acquire()
    try:
        return _check(folder, repair, model)
    finally:
        lock.release()


def _check(folder: Path, repair: bool, model: str) -> FsckView:
    if is_lost(folder):
        return _lost(folder, repair, model)
    try:
        known = revision(folder)
        if known.current != known.head:
            detail = f"the schema is {known.current or 'none'}, this program has {known.head}"
            advice = "`statevisor admin db upgrade` brings an older one up; nothing was checked."
            return _view([Finding(kind=SCHEMA, detail=detail, advice=advice)])
        return _compare(folder, repair)
    except DBAPIError as error:
        advice = f"Restore a backup. Without one: move {FILE} away and run a repair."
        return _view(
            [Finding(kind=UNREADABLE, detail=f"{folder / FILE}: {error.orig}", advice=advice)]
        )


def _lost(folder: Path, repair: bool, model: str) -> FsckView:
    """Start over from what the images say."""
    detail = f"there are images in {folder / IMAGES}, but no catalog"
    refs = rebuild(folder, model) if repair else ()
    found = Finding(kind=LOST, detail=detail, advice=START_OVER, repaired=repair)
    return _view([found], len(refs), sum(ref.nbytes for ref in refs))


def _compare(folder: Path, repair: bool) -> FsckView:
    with _connected(folder, write=repair) as conn:
        findings = list(rowcheck.check(conn))
        damaged: dict[Checkpoint, str] = {}
        sizes: dict[str, int] = {}
        read: dict[str, int | str] = {}
        after = 0
        with _Slabs(folder / IMAGES) as slabs:
            while page := keeping.page(conn, after, _SEGMENTS):
                after = page[-1].segment
                for one in page:
                    digest = one.image.digest
                    if digest not in read:
                        sizes[digest] = one.image.nbytes
                        read[digest] = slabs.read(one.image)
                    fault = misplaced(one, read[digest])
                    if fault is not None:
                        damaged[one] = fault
        if repair:
            _repair(conn, damaged)
        findings += [
            replace(finding(one, fault), repaired=repair) for one, fault in damaged.items()
        ]
    return _view(findings, len(sizes), sum(sizes.values()))


def _repair(conn: Connection, damaged: Collection[Checkpoint]) -> None:
    """Drop what can be made again; quarantine the actors that cannot wake any more."""
    scope = Scope(
        conn=conn,
        now_us=time.time_ns() // 1000,
        incarnation=current(conn),
        builds={},
        keep_keys_us=0,
        tails=Tails(),
    )
    keeping.forget(scope, [(one.segment, one.position) for one in damaged])
    roots = {one.image.digest for one in damaged if one.rooted}
    awaiting = [row.id for row in _AWAITING.all(conn, {})] if roots else []
    awaiting += [child.id for child in brood_pages.by_id(conn, "", _BROODS)] if roots else []
    for key in awaiting:
        one = actors.get(conn, key)
        near = checkpoints.nearest(conn, one.record.segment, one.record.position)
        if near is not None and near[1].digest in roots:
            one = actors.guarded(scope, key, Guard())
            actors.change(scope, one, quarantine=f"its image {near[1].digest} is damaged")


class _Slabs:
    """Slab files, opened as they are asked for; nothing is trimmed or freed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = Files()
        self._open: dict[int, int] = {}

    def __enter__(self) -> _Slabs:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._open.values():
            self._files.close(fd)

    def read(self, ref: ImageRef) -> int | str:
        """The position whose state an image is, or what is wrong with it."""
        try:
            check_ref(ref)
            return verify_extent(self._files, self._fd(ref.slab), ref).position
        except (ImageCorrupt, IncompatibleImage) as error:
            return error.detail
        except OSError as error:
            return f"slab {ref.slab} cannot be read: {error.strerror}"

    def _fd(self, slab: int) -> int:
        if slab not in self._open:
            self._open[slab] = self._files.open(self._folder / slab_name(slab))
        return self._open[slab]


@contextmanager
def _connected(folder: Path, *, write: bool) -> Iterator[Connection]:
    """One transaction on the catalog; DBAPIError passes."""
    engine = open_engine(folder / FILE, connections=1, read_only=not write)
    try:
        with engine.connect() as conn:
            begin(conn, write=write)
            try:
                yield conn
            except BaseException:
                finish(conn, commit=False)
                raise
            with translated():
                finish(conn, commit=write)
    finally:
        engine.dispose()


def _view(findings: list[Finding], images: int = 0, nbytes: int = 0) -> FsckView:
    return FsckView(
        ok=all(one.repaired for one in findings),
        images=images,
        nbytes=nbytes,
        findings=tuple(findings),
    )
