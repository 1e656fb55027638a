"""Backups: a copy of the whole data folder, made while the server works.

First the catalog is copied as it is at one moment, then every image that this copy names. Named
bytes do not change, and whoever writes the backup sees to it that none is freed meanwhile; so every
row of the copy has its bytes, each checked on its way. Images are packed into new slabs without the
holes of the old ones, and the copy's rows say where.

Until it is whole a backup lies in `TARGET.partial`, and its catalog has another name than the one
that a server looks for.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import bindparam, delete, select, update

from statevisor.hypervisor.errors import InvalidRequest, Unavailable
from statevisor.hypervisor.image_ports import Archived
from statevisor.hypervisor.records import ImageRef
from statevisor.store import checkpoints, codec
from statevisor.store.db import FILE, begin, copy, finish, open_engine, translated
from statevisor.store.extent import extent_bytes
from statevisor.store.extent_io import hash_image
from statevisor.store.extent_write import ExtentWrite, Hashed
from statevisor.store.files import Files
from statevisor.store.images import SlabImages
from statevisor.store.prepared import Prepared
from statevisor.store.slabs import Place, slab_name
from statevisor.store.tables import checkpoint, image
from statevisor.store.workplace import workplace

IMAGES: Final = "images"  #: the folder of slabs inside a data folder
MANIFEST: Final = "backup.json"
FORMAT: Final = 1
SLAB_BYTES: Final = 64 << 20
_UNFINISHED: Final = "catalog.partial"
#: What is wrong with the place: another try would not help.
_PLACE: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}
)

_MOVE = Prepared(
    update(image)
    .where(image.c.digest == bindparam("key"))
    .values(slab=bindparam("new_slab"), offset=bindparam("new_offset"))
)
_FORGET = Prepared(
    delete(image).where(
        image.c.orphaned_us.is_not(None), image.c.digest.not_in(select(checkpoint.c.digest))
    )
)


class FolderArchive:
    """The Archive port over one data folder. On one event loop; its slow parts on threads."""

    def __init__(self, data: Path, images: SlabImages, *, slab_bytes: int = SLAB_BYTES) -> None:
        self._data = data
        self._images = images
        self._slab_bytes = slab_bytes
        self._files = Files()

    async def write(self, target: str) -> Archived:
        """As the port says. A failure leaves nothing; what a crash leaves the next one removes."""
        with _disk(target):
            goal = await asyncio.to_thread(self._goal, target)
            place = workplace(goal)
            work = await asyncio.to_thread(place.__enter__)
            try:
                (work / IMAGES).mkdir()
                return await self._fill(goal, work)
            finally:
                await asyncio.to_thread(place.__exit__, None, None, None)

    def _goal(self, target: str) -> Path:
        goal = Path(os.path.abspath(target))
        if self._data.resolve() in (goal.resolve(), *goal.resolve().parents):
            raise InvalidRequest("a backup cannot lie inside the data folder it copies")
        if not goal.parent.is_dir():
            raise InvalidRequest(f"there is no folder {goal.parent} on the server")
        return goal

    async def _fill(self, goal: Path, work: Path) -> Archived:
        catalog = work / _UNFINISHED
        await asyncio.to_thread(copy, self._data / FILE, catalog)
        refs = await asyncio.to_thread(_named, catalog)
        pack = _Tar(work) if goal.suffix == ".tar" else _Folder(work)
        moved: list[ImageRef] = []
        nbytes = 0
        for number, group in enumerate(_groups(refs, self._slab_bytes), 1):
            slab = await asyncio.to_thread(self._files.create, work / IMAGES / slab_name(number))
            try:
                at = 0
                for ref in group:
                    place = Place(slab=number, offset=at, length=extent_bytes(ref.nbytes))
                    file = await self._images.export(ref)
                    moved.append(await asyncio.to_thread(self._put, slab, place, file, len(moved)))
                    at += place.length
                await asyncio.to_thread(self._files.sync, slab)
            finally:
                self._files.close(slab)
            await asyncio.to_thread(pack.add, f"{IMAGES}/{slab_name(number)}")
            nbytes += at
        await asyncio.to_thread(_relocate, catalog, moved)
        nbytes += catalog.stat().st_size
        await asyncio.to_thread(self._finish, goal, work, pack, len(moved), nbytes)
        return Archived(target=str(goal), images=len(moved), nbytes=nbytes)

    def _put(self, slab: int, place: Place, file: bytes, generation: int) -> ImageRef:
        whole = memoryview(file)
        meta = codec.read_header(whole, len(file))
        head, row = whole[: -meta.layout.row_bytes], whole[-meta.layout.row_bytes :]
        hashed = Hashed(head, hash_image([whole]))
        writing = ExtentWrite(place, row, len(head), meta, generation + 1)
        return writing.run(self._files, slab, lambda: hashed)

    def _finish(
        self, goal: Path, work: Path, pack: _Folder | _Tar, images: int, nbytes: int
    ) -> None:
        (work / _UNFINISHED).rename(work / FILE)
        pack.add(FILE)
        words = {"format": FORMAT, "images": images, "bytes": nbytes}
        (work / MANIFEST).write_text(json.dumps(words) + "\n")
        pack.add(MANIFEST)
        pack.publish(goal)
        self._files.sync_folder(goal.parent)


class _Folder:
    """A backup that is a data folder."""

    def __init__(self, work: Path) -> None:
        self._work = work

    def add(self, name: str) -> None:
        """Make one finished file durable."""
        _sync(self._work / name)

    def publish(self, goal: Path) -> None:
        """Give the whole its name."""
        for folder in (self._work / IMAGES, self._work):
            Files().sync_folder(folder)
        self._work.rename(goal)


class _Tar:
    """A backup in one file; what was added is removed, so that little room is used twice."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._path = work / "backup.tar"
        tarfile.open(self._path, "w").close()

    def add(self, name: str) -> None:
        """Append one finished file."""
        with tarfile.open(self._path, "a") as tar:
            tar.add(self._work / name, name, recursive=False)
        (self._work / name).unlink()

    def publish(self, goal: Path) -> None:
        """Give the whole its name."""
        _sync(self._path)
        self._path.rename(goal)


def _groups(refs: list[ImageRef], slab_bytes: int) -> Iterator[list[ImageRef]]:
    """Images by the slab they go to; one that is larger than a slab has its own."""
    group: list[ImageRef] = []
    room = slab_bytes
    for ref in refs:
        if group and ref.length > room:
            yield group
            group, room = [], slab_bytes
        group.append(ref)
        room -= ref.length
    if group:
        yield group


def _named(catalog: Path) -> list[ImageRef]:
    """The images that a copy names, in the order in which they lie on the disk."""
    engine = open_engine(catalog, connections=1)
    try:
        with translated(), engine.connect() as conn:
            begin(conn, write=True)
            _FORGET.run(conn, {})
            refs = checkpoints.live(conn)
            finish(conn, commit=True)
    finally:
        engine.dispose()
    return sorted(refs, key=lambda ref: (ref.slab, ref.offset))


def _relocate(catalog: Path, moved: list[ImageRef]) -> None:
    """Tell a copy where its images lie now, and leave it as one file."""
    engine = open_engine(catalog, connections=1)
    try:
        with translated(), engine.connect() as conn:
            begin(conn, write=True)
            _MOVE.many(
                conn,
                [{"key": r.digest, "new_slab": r.slab, "new_offset": r.offset} for r in moved],
            )
            finish(conn, commit=True)
    finally:
        engine.dispose()


def _sync(path: Path) -> None:
    files = Files()
    fd = files.open(path)
    try:
        os.fsync(fd)
    finally:
        files.close(fd)


@contextmanager
def _disk(target: str) -> Iterator[None]:
    """Turn what the disk says into our words."""
    try:
        yield
    except OSError as error:
        if error.errno in _PLACE:
            raise InvalidRequest(
                f"cannot write a backup at {target}: {error.strerror}",
                hint="Name a place where the server's user may write.",
            ) from error
        raise Unavailable(
            f"cannot write the backup {target}: {error.strerror}",
            hint="Look at the disk that it goes to.",
        ) from error
