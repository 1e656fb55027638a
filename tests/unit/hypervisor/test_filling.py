"""How far a row is filled, told from one thread to another."""

from __future__ import annotations

import asyncio

import pytest

from statevisor.hypervisor.filling import Filling


async def test_who_waits_is_told_when_it_is_there() -> None:
    filling = Filling()
    waiting = asyncio.ensure_future(asyncio.to_thread(filling.wait, 5))
    filling.reach(4)
    await asyncio.sleep(0)
    assert not waiting.done()
    filling.reach(7)
    assert await waiting == 7
    assert filling.wait(0) == filling.wait(7) == 7


async def test_who_waits_for_what_never_comes_is_told_why() -> None:
    filling = Filling()
    filling.reach(4)
    waiting = asyncio.ensure_future(asyncio.to_thread(filling.wait, 5))
    filling.fail(RuntimeError("device lost"))
    with pytest.raises(RuntimeError, match="device lost"):
        await waiting
    assert filling.wait(4) == 4, "what is there is there"
