"""Everything one guest needs to run its actors: engine thread, step loop, slots and frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from statevisor.hypervisor.catalog_port import Catalog
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.engine import Engine
from statevisor.hypervisor.image_ports import HostFrames, Images
from statevisor.hypervisor.loop import StepLoop
from statevisor.hypervisor.ports import Clock, Guest, Meter
from statevisor.hypervisor.residency import Residency

#: Makes the host tier of a guest from its frame memory: (memory, bytes of a row) -> frames.
FrameMaker = Callable[[memoryview, int], HostFrames]


@dataclass(slots=True)
class Batcher:
    """One guest at work."""

    guest: Guest
    engine: Engine
    loop: StepLoop
    residency: Residency
    created_us: int

    def start(self) -> tuple[asyncio.Task[None], ...]:
        """Begin to step and to keep frames free; cancel the tasks to stop."""
        name = self.guest.name
        return (
            asyncio.create_task(self.loop.run(), name=f"step-loop-{name}"),
            asyncio.create_task(self.residency.evictions.run(), name=f"spill-{name}"),
        )

    async def stop(self) -> None:
        """End the engine thread after the step that runs."""
        await self.residency.evictions.stop()
        await self.engine.close()


def make_batcher(
    guest: Guest,
    *,
    catalog: Catalog,
    images: Images,
    frames: FrameMaker,
    config: VisorConfig,
    clock: Clock,
    meter: Meter,
) -> Batcher:
    """Put the parts of one guest together; the host budget is shared out in whole rows."""
    engine = Engine(guest.name)
    loop = StepLoop(guest, engine, config.step_tokens, clock, meter)
    row_bytes = guest.layout.row_bytes
    residency = Residency(
        guest=guest,
        engine=engine,
        loop=loop,
        frames=frames(guest.frames(config.host_bytes // row_bytes), row_bytes),
        catalog=catalog,
        images=images,
        config=config,
        clock=clock,
        meter=meter,
    )
    return Batcher(guest, engine, loop, residency, clock.now_us())
