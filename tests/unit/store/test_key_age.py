"""An Idempotency-Key is kept for as long as was said, whatever the wall clock is set to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statevisor.hypervisor.catalog_port import NewActor, Once
from statevisor.hypervisor.errors import Conflict
from statevisor.hypervisor.steady import SteadyTime
from statevisor.store.catalog import SqlCatalog

DAY_US = 86_400 * 10**6
ONCE = Once(key="k", request="r")


class Clock:
    """Two hands that a test moves."""

    def __init__(self) -> None:
        self.wall_us, self.seconds = 10**15, 5.0

    def now_us(self) -> int:
        return self.wall_us

    def monotonic(self) -> float:
        return self.seconds


def new(name: str) -> NewActor:
    return NewActor(id=f"act_{name}", name=name, model="m", seed=1, labels={})


async def opened(folder: Path, clock: Clock, *, steady: bool) -> Any:
    made = await SqlCatalog.open(
        folder,
        now_us=clock.now_us,
        keep_keys_us=DAY_US,
        aged_us=SteadyTime(clock).now_us if steady else None,
    )
    await made.claim("test")
    await made.create(new("a"), (1,), once=ONCE)
    return made


async def test_a_jump_does_not_let_a_request_run_twice(tmp_path: Path) -> None:
    clock = Clock()
    catalog = await opened(tmp_path, clock, steady=True)
    clock.wall_us += 400 * DAY_US

    assert await catalog.operation("k") is not None
    with pytest.raises(Conflict):
        await catalog.create(new("b"), (1,), once=ONCE)
    await catalog.create(new("c"), (1,), once=Once(key="other", request="r"))  # expires old keys
    assert await catalog.operation("k") is not None

    clock.wall_us += DAY_US + 1
    clock.seconds += 86_401
    assert await catalog.operation("k") is None
    await catalog.close()


async def test_by_the_wall_clock_it_would(tmp_path: Path) -> None:
    """The control."""
    clock = Clock()
    catalog = await opened(tmp_path, clock, steady=False)
    clock.wall_us += 400 * DAY_US
    await catalog.create(new("b"), (1,), once=ONCE)
    await catalog.close()


async def test_a_clock_set_back_keeps_keys(tmp_path: Path) -> None:
    clock = Clock()
    catalog = await opened(tmp_path, clock, steady=True)
    clock.wall_us -= 400 * DAY_US
    assert await catalog.operation("k") is not None
    await catalog.close()
