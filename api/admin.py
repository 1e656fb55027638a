"""Administration: gc, fsck and backup of the data folder while the server works."""

from __future__ import annotations

from statevisor.api.call import Call, Reply
from statevisor.api.wire import NoQuery
from statevisor.api.wire_admin import (
    BackupBody,
    FsckBody,
    GcBody,
    backup_object,
    fsck_object,
    gc_object,
)


async def gc(call: Call[GcBody, NoQuery]) -> Reply:
    """Take out what nothing needs any more."""
    return Reply(value=gc_object(await call.visor.gc(call.body.command())))


async def fsck(call: Call[FsckBody, NoQuery]) -> Reply:
    """Read and compare the whole data folder; repair what can be made again."""
    return Reply(value=fsck_object(await call.visor.fsck(call.body.command())))


async def backup(call: Call[BackupBody, NoQuery]) -> Reply:
    """Copy the whole data folder to a new folder, or a new file that ends in .tar."""
    return Reply(value=backup_object(await call.visor.backup(call.body.command())))
