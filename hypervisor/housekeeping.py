"""gc, fsck and backup: one at a time, beside the work of the actors.

None of them may meet another: a backup and a check read images that a collection would free.
"""

from __future__ import annotations

import asyncio

from statevisor.hypervisor.catalog_port import Catalog
from statevisor.hypervisor.collector import Collector
from statevisor.hypervisor.commands import Backup, BackupView, Fsck, FsckView, Gc, GcView
from statevisor.hypervisor.errors import CapabilityMissing
from statevisor.hypervisor.image_ports import Archive, Images
from statevisor.hypervisor.inspector import Inspector
from statevisor.hypervisor.ports import Clock
from statevisor.hypervisor.roster import Roster
from statevisor.hypervisor.tasks import Tasks


class Housekeeping:
    """The commands that look after the data folder."""

    def __init__(
        self,
        *,
        roster: Roster,
        tasks: Tasks,
        catalog: Catalog,
        images: Images,
        archive: Archive | None,
        clock: Clock,
    ) -> None:
        self._tasks = tasks
        self._archive = archive
        self._alone = asyncio.Lock()
        prints = {name: batcher.guest.fingerprints for name, batcher in roster.batchers.items()}
        self._collector = Collector(catalog=catalog, images=images, prints=prints, clock=clock)
        self._inspector = Inspector(roster=roster, catalog=catalog, images=images)

    async def gc(self, command: Gc) -> GcView:
        """Take out what nothing needs."""
        return await self._tasks.whole(self._gc(command))

    async def fsck(self, command: Fsck) -> FsckView:
        """Read everything and compare; repair what can be made again."""
        return await self._tasks.whole(self._fsck(command))

    async def backup(self, command: Backup) -> BackupView:
        """Copy everything. Raises: CapabilityMissing, Conflict, ImageCorrupt, Unavailable."""
        return await self._tasks.whole(self._backup(command))

    async def _gc(self, command: Gc) -> GcView:
        async with self._alone:
            return await self._collector.run(command)

    async def _fsck(self, command: Fsck) -> FsckView:
        async with self._alone:
            return await self._inspector.run(command)

    async def _backup(self, command: Backup) -> BackupView:
        if self._archive is None:
            raise CapabilityMissing("this store cannot be copied")
        async with self._alone:
            made = await self._archive.write(command.target)
        return BackupView(target=made.target, images=made.images, nbytes=made.nbytes)
