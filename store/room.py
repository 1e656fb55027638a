"""Room for extents: given at once where there is some, made in the background ahead of need."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final

from statevisor.hypervisor.errors import StatevisorError, Unavailable
from statevisor.store.slabs import Growth, Place, Slab, Slabs
from statevisor.store.workers import Workers

log = logging.getLogger(__name__)

NO_DISK: Final = "Free room on the disk of the data folder."


class Room:
    """Takes room from the slabs, lets them grow, and deletes the empty ones. On one event loop."""

    def __init__(self, slabs: Slabs, workers: Workers, on_remove: Callable[[int], object]) -> None:
        self._slabs = slabs
        self._workers = workers
        self._on_remove = on_remove  # told the id of a slab before its file is closed
        self._growth: asyncio.Task[None] | None = None
        self._chores = set[asyncio.Task[None]]()

    async def take(self, length: int) -> Place:
        """Room for one extent. Raises: Unavailable, QuotaExceeded."""
        while (place := self._slabs.take(length)) is None:
            await self._grow(length)
        if self._growth is None and self._slabs.wants_room(length):
            self._begin(self._grow_ahead(length))
        return place

    def give(self, place: Place) -> None:
        """Free an extent. Raises: StatevisorError if it is not in use."""
        self._slabs.give(place)
        self._trim()

    async def close(self) -> None:
        """Wait for what goes on in the background."""
        while self._chores:
            await asyncio.wait(self._chores)

    async def _grow_ahead(self, length: int) -> None:
        try:
            await self._grow(max(length, self._slabs.config.step_bytes))
        except StatevisorError as error:
            # Nobody needs the room yet; whoever does will be told.
            log.warning("no room made ahead of need: %s", error.detail)

    async def _grow(self, length: int) -> None:
        """Make room, or wait for the growth under way; the caller looks again."""
        if self._growth is None:
            self._growth = self._begin(self._grow_once(self._slabs.plan(length)))
        # Shielded: the growth goes on for the others if this caller is cancelled.
        await asyncio.shield(self._growth)

    async def _grow_once(self, growth: Growth) -> None:
        try:
            fd = await self._workers.run(self._perform, growth)
        except OSError as error:
            self._slabs.abandon()
            raise Unavailable(f"no room for images: {error.strerror}", hint=NO_DISK) from error
        except BaseException:
            self._slabs.abandon()
            raise
        else:
            self._slabs.adopt(growth, fd)
        finally:
            self._growth = None
            self._trim()

    def _perform(self, growth: Growth) -> int:
        fd = self._slabs.perform(growth)
        self._workers.sync(self._slabs.files.sync, fd, growth.path)
        if growth.slab is None:
            folder = self._slabs.folder
            self._workers.sync(self._slabs.files.sync_folder, folder, folder)
        return fd

    def _trim(self) -> None:
        for slab in self._slabs.trim():
            self._on_remove(slab.id)
            self._begin(self._workers.run(self._remove, slab))

    def _remove(self, slab: Slab) -> None:
        try:
            self._slabs.remove(slab)
        except OSError as error:
            # No named image is in the file: the next start sees that and tries again.
            log.warning("cannot delete the empty slab %s: %s", slab.path, error.strerror)

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        chore = asyncio.get_running_loop().create_task(work)
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)
        return chore
