"""A slot is filled while its row is on its way, and holds it only when it is whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.engine import Engine
from statevisor.hypervisor.loading import Loading

ROW = bytes(range(80))


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine("test")
    yield made
    await made.close()


@pytest.fixture
def guest() -> ToyGuest:
    return ToyGuest(slots=2)


def row_of(guest: ToyGuest, slot: int) -> bytes:
    row = bytearray(len(ROW))
    guest.save(slot, memoryview(row))
    return bytes(row)


async def test_what_has_come_is_in_the_slot_before_the_rest_is_there(
    engine: Engine, guest: ToyGuest
) -> None:
    row = bytearray(len(ROW))
    loading = Loading(engine, guest, 1, memoryview(row))
    row[:24] = ROW[:24]
    await asyncio.to_thread(loading.reach, 24)
    await engine.settled()
    assert row_of(guest, 1) == ROW[:24] + bytes(56)
    row[24:] = ROW[24:]
    await loading.whole()
    assert row_of(guest, 1) == ROW


async def test_what_is_read_anew_is_loaded_anew(engine: Engine, guest: ToyGuest) -> None:
    row = bytearray(b"?" * len(ROW))
    loading = Loading(engine, guest, 1, memoryview(row))
    await asyncio.to_thread(loading.reach, len(ROW))
    loading.reach(0)
    row[:] = ROW
    await loading.whole()
    assert row_of(guest, 1) == ROW


async def test_the_slot_holds_it_when_it_is_told_to_be_whole(
    engine: Engine, guest: ToyGuest
) -> None:
    gate = threading.Event()
    busy = asyncio.create_task(engine.run(gate.wait, 20))
    await asyncio.sleep(0)
    loading = Loading(engine, guest, 1, memoryview(bytearray(ROW)))
    await asyncio.to_thread(loading.reach, len(ROW))
    whole = asyncio.create_task(loading.whole())
    await asyncio.to_thread(lambda: None)
    assert not whole.done()
    gate.set()
    await whole
    assert row_of(guest, 1) == ROW
    await busy


async def test_a_load_that_fails_is_told_behind_all_others(engine: Engine) -> None:
    class Broken(ToyGuest):
        def load(self, slot: int, row: memoryview, start: int | None = None) -> None:
            if not start:
                raise RuntimeError("device lost")
            super().load(slot, row, start)

    loading = Loading(engine, Broken(slots=2), 1, memoryview(bytearray(ROW)))
    await asyncio.to_thread(loading.reach, 24)
    with pytest.raises(RuntimeError, match="device lost"):
        await loading.whole()
