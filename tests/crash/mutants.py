"""Faults to be built in: each takes one guard out, and a crash must show that it is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from statevisor.hypervisor.gate import OutputGate
from statevisor.store import actors, catalog, db, images, journal
from statevisor.store.files import Files


def normal_sync() -> None:
    """SQLite's log is not synced at a commit."""
    settings = ["synchronous=NORMAL" if "synchronous" in one else one for one in db._PRAGMAS]
    db._PRAGMAS = tuple(settings)


def no_slab_sync() -> None:
    """An image is named before its bytes are durable."""
    Files.sync = lambda self, fd: None  # type: ignore[method-assign]


def row_first() -> None:
    """The catalog's row comes first, the bytes of its image later."""

    async def later(self: Any, made: Any, slab_id: int, *, direct: bool) -> Any:
        writing = made()
        hashed = await self._workers.run(writing.hashed)
        fd = self._slab(slab_id).fd
        ref = writing.run(Nowhere(), fd, lambda: hashed)

        async def bytes_at_last() -> None:
            await asyncio.sleep(0.3)  # longer than any commit
            await self._workers.run(writing.run, self.files, fd, lambda: hashed)

        _late.append(asyncio.create_task(bytes_at_last()))
        return images.Written(ref, False)

    images.SlabImages._write = later  # type: ignore[method-assign]


_late: list[asyncio.Task[None]] = []


class Nowhere(Files):
    """Takes bytes and keeps none."""

    def write(self, fd: int, buffers: Any, offset: int) -> None: ...


def no_fence() -> None:
    """A writer that has lost the folder goes on."""
    for module in (catalog, journal):
        module.check_incarnation = lambda current, mine: None  # type: ignore[attr-defined]
    actors.check_guard = lambda actor, guard: None


def early_gate() -> None:
    """Tokens are told before the journal has them."""
    init = OutputGate.__init__

    def open_at_once(self: OutputGate, *args: Any) -> None:
        init(self, *args)
        self._open = True

    OutputGate.__init__ = open_at_once  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "synchronous=NORMAL": normal_sync,
    "no slab sync": no_slab_sync,
    "row before bytes": row_first,
    "no fence": no_fence,
    "early gate": early_gate,
}


def apply(name: str) -> None:
    """Build a fault into this process, for good."""
    MUTANTS[name]()
