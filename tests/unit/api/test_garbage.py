"""Looks for garbage are seldom, and what is loaded is not looked through."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from statevisor.api.garbage import settle


@pytest.fixture
def _as_before() -> Iterator[None]:
    threshold, enabled = gc.get_threshold(), gc.isenabled()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
    (gc.enable if enabled else gc.disable)()


@pytest.mark.usefixtures("_as_before")
def test_the_objects_of_a_large_step_are_not_looked_through() -> None:
    gc.disable()
    loaded = [[] for _ in range(100)]
    settle()
    looks: list[str] = []
    gc.callbacks.append(lambda phase, info: looks.append(phase))
    try:
        assert gc.isenabled()
        assert not any(one is loaded for one in gc.get_objects())
        for _ in range(20):
            step = [[row] for row in range(4 * 512)]
            del step
        assert looks == []
    finally:
        gc.callbacks.pop()
