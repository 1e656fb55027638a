"""gc, fsck and backup on the wire."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from statevisor.api.wire import Body, ServerPath
from statevisor.hypervisor.commands import (
    Backup,
    BackupView,
    Fsck,
    FsckView,
    Gc,
    GcLine,
    GcView,
)

_GC = Gc()


class GcBody(Body):
    """POST /v1/admin/gc."""

    grace_s: Annotated[float, Field(ge=1, lt=1e9)] = _GC.grace_s
    dry_run: bool = False

    def command(self) -> Gc:
        """The command."""
        return Gc(grace_s=self.grace_s, dry_run=self.dry_run)


class FsckBody(Body):
    """POST /v1/admin/fsck."""

    repair: bool = False
    replay: bool = False

    def command(self) -> Fsck:
        """The command."""
        return Fsck(repair=self.repair, replay=self.replay)


class BackupBody(Body):
    """POST /v1/admin/backup; the path is one of the server's machine."""

    path: ServerPath

    def command(self) -> Backup:
        """The command."""
        return Backup(target=self.path)


class GcLineObject(TypedDict):
    """Images of one fate."""

    reason: str
    images: int
    bytes: int


class BytesObject(TypedDict):
    """Images and their bytes on the disk."""

    images: int
    bytes: int


class GcObject(TypedDict):
    """What a gc took out, or would take out."""

    object: Literal["gc"]
    dry_run: bool
    actors: int
    versions: int
    tokens: int
    removed: list[GcLineObject]
    kept: list[GcLineObject]
    freed: BytesObject
    waiting: BytesObject


class FindingObject(TypedDict):
    """One thing that is wrong."""

    kind: str
    detail: str
    advice: str
    actor: str | None
    version: str | None
    repaired: bool


class FsckObject(TypedDict):
    """What a check found; ok if nothing is wrong or everything was repaired."""

    object: Literal["fsck"]
    ok: bool
    images: int
    bytes: int
    derived: int
    findings: list[FindingObject]


class BackupObject(TypedDict):
    """A finished backup."""

    object: Literal["backup"]
    path: str
    images: int
    bytes: int


def gc_object(view: GcView) -> GcObject:
    """What a gc took out."""
    return {
        "object": "gc",
        "dry_run": view.dry_run,
        "actors": view.actors,
        "versions": view.versions,
        "tokens": view.tokens,
        "removed": [_line(line) for line in view.removed],
        "kept": [_line(line) for line in view.kept],
        "freed": {"images": view.freed_images, "bytes": view.freed_bytes},
        "waiting": {"images": view.waiting_images, "bytes": view.waiting_bytes},
    }


def fsck_object(view: FsckView) -> FsckObject:
    """What a check found."""
    return {
        "object": "fsck",
        "ok": view.ok,
        "images": view.images,
        "bytes": view.nbytes,
        "derived": view.derived,
        "findings": [
            {
                "kind": one.kind,
                "detail": one.detail,
                "advice": one.advice,
                "actor": one.actor,
                "version": one.version,
                "repaired": one.repaired,
            }
            for one in view.findings
        ],
    }


def backup_object(view: BackupView) -> BackupObject:
    """A finished backup."""
    return {
        "object": "backup",
        "path": view.target,
        "images": view.images,
        "bytes": view.nbytes,
    }


def _line(line: GcLine) -> GcLineObject:
    return {"reason": line.reason, "images": line.images, "bytes": line.nbytes}
