"""The Archive port in memory: the twin of `FolderArchive` for tests."""

from __future__ import annotations

import asyncio
import copy

from statevisor.hypervisor.errors import Conflict
from statevisor.hypervisor.image_ports import Archived
from statevisor.store.memory import MemoryCatalog
from statevisor.store.memory_images import MemoryImages


class MemoryArchive:
    """Copies in a dictionary, each a catalog and its images."""

    def __init__(self, catalog: MemoryCatalog, images: MemoryImages) -> None:
        self._catalog = catalog
        self._images = images
        self.copies: dict[str, tuple[MemoryCatalog, MemoryImages]] = {}

    async def write(self, target: str) -> Archived:
        """Copy everything. Raises: Conflict, ImageCorrupt."""
        if target in self.copies:
            raise Conflict(f"{target} exists")
        refs = await self._catalog.live_images()
        for ref in refs:
            await self._images.verify(ref)
        self.copies[target] = copy.deepcopy((self._catalog, self._images))
        await asyncio.sleep(0)
        nbytes = sum(ref.length for ref in refs)
        return Archived(target=target, images=len(refs), nbytes=nbytes)
