"""Many more actors than fit anywhere but on the disk, and what memory they take."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from statevisor.api.bench.stage import Stage, staged
from statevisor.api.bench.wide_guest import WideGuest
from statevisor.hypervisor.commands import CreateActor, Generate, Hibernate, Resume
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.errors import ActorBusy, NoFreeSlot
from statevisor.hypervisor.vocab import Tier

MIB: Final = 1 << 20
SLOTS: Final = 32
CLIENTS: Final = 16
FULL: Final = 0.8  #: it is emptied below that in the background


def resident_bytes() -> int:
    """What this process holds in memory, after a collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Crowd:
    """Actors that are created in rounds and moved at random."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self._visor = stage.visor
        self._random = random.Random(seed)
        self.names: list[str] = []
        self.done = Counter[str]()

    async def round(self, create: int, moves: int) -> None:
        """Create some, then move any of them, by several clients at once."""
        await self._at_once(create, self._create)
        await self._at_once(moves, self._move)

    async def _at_once(self, count: int, act: Any) -> None:
        room = asyncio.Semaphore(CLIENTS)

        async def one() -> None:
            async with room:
                await act()

        await asyncio.gather(*(one() for _ in range(count)))

    async def _create(self) -> None:
        name = f"a{len(self.names)}"
        self.names.append(name)
        await self._visor.create(CreateActor(name=name, prompt=f"I am {name}. "))
        self.done["created"] += 1

    async def _move(self) -> None:
        name, kind = self._random.choice(self.names), self._random.choice(MOVES)
        try:
            await self._do(name, kind)
        except (ActorBusy, NoFreeSlot) as error:
            kind = error.code
        self.done[kind] += 1

    async def _do(self, name: str, kind: str) -> None:
        if kind == "generate":
            stream = await self._visor.generate(
                Generate(actor=name, prompt="And?", max_tokens=4, ignore_eos=True)
            )
            await stream.result()
        elif kind == "resume":
            await self._visor.resume(Resume(actor=name))
        else:
            await self._visor.hibernate(Hibernate(actor=name, tier=Tier(kind)))


MOVES: Final = ("generate", "resume", Tier.HOST.value, Tier.NVME.value)


async def crowd(
    folder: Path,
    *,
    actors: int,
    row_bytes: int,
    host_bytes: int,
    rounds: int = 10,
    seed: int = 1,
) -> dict[str, Any]:
    """Memory after each round, and by how much it grew since the host tier was first full."""
    guest = WideGuest(row_bytes, slots=SLOTS)
    config = VisorConfig(host_bytes=host_bytes)
    lines: list[dict[str, Any]] = []
    began = time.monotonic()
    async with staged(folder, guest, config) as stage:
        people = Crowd(stage, seed)
        for _ in range(rounds):
            await people.round(actors // rounds, actors // rounds // 2)
            _, host, nvme = await stage.visor.tiers()
            lines.append(
                {
                    "actors": len(people.names),
                    "rss_mib": round(resident_bytes() / MIB, 1),
                    "host_mib": round(host.used_bytes / MIB, 1),
                    "images_mib": round(nvme.used_bytes / MIB, 1),
                    "seconds": round(time.monotonic() - began, 1),
                }
            )
    first, last = _when_full(lines)["rss_mib"], lines[-1]["rss_mib"]
    return {
        "row_bytes": row_bytes,
        "host_bytes": host_bytes,
        "slots": SLOTS,
        "rounds": lines,
        "done": dict(people.done),
        "growth_mib": round(last - first, 1),
        "growth": round(last / first - 1, 4),
    }


def _when_full(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The first round after which the host tier is as full as it gets."""
    most = max(line["host_mib"] for line in lines)
    return next(line for line in lines if line["host_mib"] >= FULL * most)
