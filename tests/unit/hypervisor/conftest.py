"""A whole hypervisor on twins: toy guest, memory store, a clock that stands still."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.commands import (
    Append,
    CreateActor,
    Generate,
    TokenEvent,
    TurnView,
)
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.visor import Visor
from statevisor.store.host import HostTier
from statevisor.store.memory import MemoryCatalog
from statevisor.store.memory_images import MemoryImages

ROW_BYTES = 80
HOT = SamplerSettings(temperature=1.0)


class StillClock:
    """Time moves when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def now_us(self) -> int:
        return int(self.seconds * 1_000_000)

    def monotonic(self) -> float:
        return self.seconds


class Tally:
    """A meter that adds up."""

    def __init__(self) -> None:
        self.counts: dict[str, float] = {}
        self.seen: dict[str, list[float]] = {}

    def observe(self, name: str, value: float, **labels: str) -> None:
        self.seen.setdefault(name, []).append(value)

    def count(self, name: str, n: float = 1, **labels: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + n


@dataclass
class World:
    """One data folder and the hypervisor that runs on it."""

    slots: int = 4
    frames: int = 2
    config: dict[str, Any] = field(default_factory=dict)
    catalog: Any = field(default_factory=MemoryCatalog)
    images: Any = field(default_factory=MemoryImages)
    clock: StillClock = field(default_factory=StillClock)
    meter: Tally = field(default_factory=Tally)
    build: str = "toy-1"
    guest_type: type[ToyGuest] = ToyGuest

    def __post_init__(self) -> None:
        self.boot()

    def boot(self) -> None:
        """A fresh process over the same folder."""
        self.guest = self.guest_type(slots=self.slots, build=self.build)
        settings = {"slot_wait_s": 0.2, "host_bytes": ROW_BYTES * self.frames, **self.config}
        self.visor = Visor(
            guests=[self.guest],
            catalog=self.catalog,
            images=self.images,
            frames=lambda memory, row: HostTier(memory, row, checksum=zlib.crc32),
            config=VisorConfig(**settings),
            clock=self.clock,
            meter=self.meter,
        )

    async def crash(self) -> None:
        """Stop without drain, as a kill does, and start again."""
        await self.visor.close()
        self.boot()
        await self.start()

    async def start(self) -> None:
        """Take the folder and begin to step."""
        await self.visor.start(await self.catalog.claim("test"))

    async def create(self, name: str, prompt: str | None = "hello", seed: int = 7) -> None:
        await self.visor.create(CreateActor(name=name, prompt=prompt, seed=seed))

    async def append(self, name: str, prompt: str) -> TurnView:
        return await self.visor.append(Append(actor=name, prompt=prompt))

    async def say(self, name: str, prompt: str | None = None, **more: Any) -> TurnView:
        """Generate to the end, checking that the stream told exactly the result."""
        more.setdefault("max_tokens", 12)
        more.setdefault("settings", HOT)
        more.setdefault("ignore_eos", True)
        stream = await self.visor.generate(Generate(actor=name, prompt=prompt, **more))
        events: list[TokenEvent] = [event async for event in stream]
        view = await stream.result()
        assert tuple(event.token for event in events) == view.token_ids
        assert [event.index for event in events] == list(range(len(events)))
        assert "".join(event.text for event in events) == view.text
        return view

    def check(self) -> None:
        """Slots and frames are conserved."""
        for batcher in self.visor._batchers.values():
            batcher.residency.check()
            batcher.residency.frames.check()  # type: ignore[attr-defined]


@pytest.fixture
async def worlds() -> AsyncIterator[Callable[..., Any]]:
    """Makes worlds that are started, and checked and closed at the end."""
    made: list[World] = []

    async def make(**settings: Any) -> World:
        world = World(**settings)
        await world.start()
        made.append(world)
        return world

    yield make
    for world in made:
        world.check()
        await world.visor.close()


@pytest.fixture
async def world(worlds: Callable[..., Any]) -> World:
    """One started world."""
    made: World = await worlds()
    return made
