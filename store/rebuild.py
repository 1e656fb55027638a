"""A fresh catalog from the images that stand on the disk.

Of each whole image comes one actor, `recovered-…`, that begins where the image stands: its state,
its position and the tokens it has not absorbed. Images that had been freed and not yet overwritten
come back too. Names, text, lineage, tags and labels were in the catalog alone.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Final

from statevisor.hypervisor.catalog_port import NewActor
from statevisor.hypervisor.errors import Unavailable
from statevisor.hypervisor.ids import Ids
from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.records import ImageRef
from statevisor.store import births
from statevisor.store.backup import IMAGES
from statevisor.store.db import FILE, begin, finish, migrate, open_engine, translated
from statevisor.store.extent import ExtentHeader
from statevisor.store.extent_io import verify_extent
from statevisor.store.files import Files
from statevisor.store.prepared import inserting
from statevisor.store.scan import scan
from statevisor.store.scope import Scope
from statevisor.store.tables import owner
from statevisor.store.tails import Tails

LABEL: Final = {"recovered": "fsck"}
_DRAFT: Final = "catalog.rebuild"
_CLAIM = inserting(owner)


class _WallClock:
    """The machine's time."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()


def rebuild(folder: Path, model: str) -> tuple[ImageRef, ...]:
    """Make the catalog of a folder that has lost it; the images that came back.

    Raises: Unavailable (the disk fails).
    """
    found = _found(folder / IMAGES)
    draft = folder / _DRAFT
    shutil.rmtree(draft, ignore_errors=True)
    path = migrate(draft)
    ids, now = Ids(_WallClock()), time.time_ns() // 1000
    # Later extents must be younger than every one that is there.
    incarnation = max([1, *(header.generation >> 32 for header, _ in found)])
    engine = open_engine(path, connections=1)
    try:
        with translated(), engine.connect() as conn:
            begin(conn, write=True)
            scope = Scope(
                conn=conn,
                now_us=now,
                incarnation=incarnation,
                builds={},
                keep_keys_us=0,
                tails=Tails(),
            )
            _CLAIM.run(conn, {"incarnation": incarnation, "name": "fsck", "claimed_us": now})
            for header, meta in found:
                new = NewActor(
                    id=ids.new("act"),
                    name=f"recovered-{header.ref.digest.rpartition(':')[2][:16]}",
                    model=model,
                    seed=ids.seed(),
                    labels=LABEL,
                )
                births.import_image(scope, new, header.ref, meta, "fsck", None)
            finish(conn, commit=True)
    finally:
        engine.dispose()
    # A server that met a half-made catalog would take all images for free.
    path.rename(folder / FILE)
    Files().sync_folder(folder)
    shutil.rmtree(draft)
    return tuple(header.ref for header, _ in found)


def _found(folder: Path) -> list[tuple[ExtentHeader, ImageMeta]]:
    """The youngest whole image of every digest, oldest first."""
    files = Files()
    found: dict[str, tuple[ExtentHeader, ImageMeta]] = {}
    try:
        for path in sorted(folder.glob("*.slab")):
            fd = files.open(path)
            try:
                for header in scan(files, fd, int(path.stem)):
                    known = found.get(header.ref.digest)
                    if known is None or known[0].generation < header.generation:
                        found[header.ref.digest] = header, verify_extent(files, fd, header.ref)
            finally:
                files.close(fd)
    except OSError as error:
        raise Unavailable(f"{folder} cannot be read: {error.strerror}") from error
    return sorted(found.values(), key=lambda one: one[0].generation)
