"""Rows on their way: bounded, waited for, never lent while somebody still copies into one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from statevisor.hypervisor.engine import Engine
from statevisor.hypervisor.staging import Staging

ROW = 10


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine("test")
    yield made
    await made.close()


@pytest.fixture
def staging(engine: Engine) -> Staging:
    return Staging(memoryview(bytearray(2 * ROW + 3)), ROW, engine)


async def test_rows_do_not_overlap_and_come_back(staging: Staging) -> None:
    assert staging.capacity == 2
    async with staging.row() as a, staging.row() as b:
        a[:], b[:] = b"a" * ROW, b"b" * ROW
        assert (bytes(a), bytes(b)) == (b"a" * ROW, b"b" * ROW)
        assert staging.free == 0
    assert staging.free == 2


async def test_whoever_finds_none_waits(staging: Staging) -> None:
    async def use() -> None:
        async with staging.row():
            pass

    async with staging.row():
        async with staging.row():
            waiting = asyncio.create_task(use())
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting
    assert staging.free == 2


async def test_a_row_is_not_lent_again_while_a_cancelled_copy_goes_on(
    staging: Staging, engine: Engine
) -> None:
    gate, begun = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def copy(row: memoryview) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert gate.wait(20)
        row[:] = b"x" * ROW

    async def move() -> None:
        async with staging.row() as row:
            await engine.run(copy, row)

    moving = asyncio.create_task(move())
    await begun.wait()
    moving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await moving
    assert staging.free == 1  # were it two, the copy could hit another's state
    gate.set()
    async with staging.row(), staging.row() as late:
        late[:] = b"y" * ROW
        await engine.beside(lambda: None)
        assert bytes(late) == b"y" * ROW


async def test_an_error_inside_gives_the_row_back(staging: Staging, engine: Engine) -> None:
    for _ in range(5):
        with pytest.raises(ValueError, match="broken"):
            async with staging.row():
                raise ValueError("broken")
    await engine.beside(lambda: None)
    async with staging.row(), staging.row():
        pass
