"""What a measurement of moves works with: a plan, a visor at work, and actors that decode."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from statevisor.api.bench.step_log import StepLog
from statevisor.hypervisor.commands import CreateActor, DeleteActor, Generate, Hibernate, TokenEvent
from statevisor.hypervisor.ports import Guest
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.visor import Visor
from statevisor.hypervisor.vocab import Tier

#: Full steps at the begin of a company that do not count.
_WARM: Final = 16
_ENDLESS: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be measured."""

    geometry: str
    state_dtype: str
    device: str
    slots: int
    parts: Sequence[str]
    rounds: int = 100  #: moves of one actor
    steps: int = 100  #: before each move of many, to hold it against
    prompt_tokens: int = 16_384
    arrivals: int = 1_000
    step_tokens: int = 512
    durability: Any = "sync"
    settings: SamplerSettings = field(default_factory=lambda: SamplerSettings(temperature=1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a part has measured: figures by name, and the samples that they are of."""

    figures: Mapping[str, Any]
    samples: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A started visor over a real store, whose meter is `log`."""

    plan: Plan
    visor: Visor
    guest: Guest
    log: StepLog
    folder: Path  #: of the store

    @property
    def half(self) -> int:
        """Half of the slots."""
        return self.plan.slots // 2

    def forget_pages(self) -> None:
        """Let the system drop what its page cache holds of the images; they are synced."""
        for path in (self.folder / "images").iterdir():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)

    async def hibernate(self, name: str, tier: Tier) -> float:
        """Move an actor down; returns milliseconds."""
        began = time.perf_counter()
        view = await self.visor.hibernate(Hibernate(actor=name, tier=tier))
        took = (time.perf_counter() - began) * 1e3
        assert view.tier is tier, f"{name} is in {view.tier}, not in {tier}"
        return took

    @asynccontextmanager
    async def actors(self, kind: str, count: int, *, prompt: str) -> AsyncIterator[list[str]]:
        """So many actors behind a prompt, each in a slot, for a block."""
        names = [f"{kind}-{index}" for index in range(count)]
        create = self.visor.create
        await asyncio.gather(*(create(CreateActor(name=name, prompt=prompt)) for name in names))
        try:
            yield names
        finally:
            delete = self.visor.delete
            await asyncio.gather(*(delete(DeleteActor(actor=name)) for name in names))

    @asynccontextmanager
    async def decoding(self, count: int) -> AsyncIterator[None]:
        """So many actors that decode all through a block; every step has a row of each by then."""
        async with self.actors("decoder", count, prompt="In the beginning") as names:
            streams = [await self._endless(name) for name in names]
            try:
                await self.log.passed(_WARM, rows=count)
                yield
            finally:
                for stream in streams:
                    stream.cancel()
                await asyncio.gather(*(stream.result() for stream in streams))

    async def _endless(self, name: str) -> Any:
        stream = await self.visor.generate(self.turn(name, _ENDLESS))
        stream.listen(forget)
        return stream

    def turn(self, name: str, tokens: int, prompt: tuple[int, ...] | None = None) -> Generate:
        """A turn of just so many tokens."""
        return Generate(
            actor=name,
            prompt=prompt,
            max_tokens=tokens,
            settings=self.plan.settings,
            ignore_eos=True,
        )


def forget(events: Sequence[TokenEvent]) -> None:
    """As a caller who has taken them."""
