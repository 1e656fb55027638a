"""The threads on which the image store does its slow work, and the rule for a failed sync.

After a failed sync nobody knows what the disk holds, and asking again would say that all is well:
the process ends, and what is durable is found at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, TypeVar, TypeVarTuple

from statevisor.hypervisor.hands import Hands
from statevisor.store.settled import settled

log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EX_IOERR: Final = 74  # sysexits.h


def stop_process(reason: str) -> NoReturn:
    """End the process at once: nothing may be acknowledged any more."""
    log.critical("%s; the process ends, what is durable is checked at the next start", reason)
    os._exit(EX_IOERR)


class Workers:
    """One bounded pool of threads, first in, first out."""

    def __init__(self, threads: int, on_fsync_error: Callable[[str], NoReturn]) -> None:
        self._hands = Hands(threads, "images")
        self._stop = on_fsync_error
        self._broken: str | None = None  # why nothing may be acknowledged any more

    async def run(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Do it on a thread; a cancelled caller waits until the thread has done."""
        return await settled(self.begin(work, *args))

    def begin(self, work: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Begin it on a thread; who waits for it does so by `settled`."""
        return self._hands.begun(partial(work, *args))

    def offer(self, work: Callable[[], object]) -> None:
        """Have it done once a thread is free; what it raises is lost."""
        self._hands.give(partial(_lost, work), None)

    def sync(self, sync: Callable[[T], None], what: T, path: Path) -> None:
        """Sync once, on the calling thread; after one failure no sync is asked for again."""
        try:
            if self._broken is None:
                sync(what)
        except OSError as error:
            self._broken = f"cannot sync {path}: {error.strerror}"
        if self._broken is not None:
            self._stop(self._broken)

    async def close(self) -> None:
        """Wait for everything that was begun."""
        await self._hands.close()


def _lost(work: Callable[[], object]) -> None:
    # whoever needs what it gives has it done too, and is told
    with suppress(Exception):
        work()
