"""Copies beside the steps: they see what went before, and wait for nothing else."""

from __future__ import annotations

import pytest
import torch

from statevisor.guests.bank import Bank
from statevisor.hypervisor.layout import Layout, StateFamily

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

ROW_BYTES = 1 << 20
#: Cycles that a spin kernel holds its stream: some tens of milliseconds.
SPIN = 100_000_000


@pytest.fixture
def frame(bank: Bank) -> memoryview:
    return bank.frames(1)  # to lock memory waits for the device, so it comes first


@pytest.fixture
def bank() -> Bank:
    layout = Layout(families=(StateFamily(name="wkv", shape=(1, ROW_BYTES // 4), dtype="F32"),))
    bank = Bank(layout, slots=6, device="cuda")
    bank.bytes.random_(0, 256)
    torch.cuda.synchronize()
    return bank


def pending() -> torch.cuda.Event:
    """Hold the steps' stream; the event is behind that."""
    torch.cuda._sleep(SPIN)
    event = torch.cuda.Event()
    event.record()
    return event


def test_a_save_waits_for_no_step_of_another_slot(bank: Bank, frame: memoryview) -> None:
    wanted = bank.bytes[1].cpu()
    held = pending()
    bank.save(1, frame)
    assert not held.query()
    assert torch.equal(torch.frombuffer(frame, dtype=torch.uint8), wanted)


def test_a_load_waits_for_no_step_and_the_next_step_sees_it(bank: Bank, frame: memoryview) -> None:
    torch.frombuffer(frame, dtype=torch.uint8).fill_(7)
    held = pending()
    bank.load(2, frame)
    assert not held.query()
    assert bool((bank.bytes[2] == 7).all())


@pytest.mark.parametrize("begin", ["clear", "copy"])
def test_a_save_sees_what_was_begun_on_its_slot(bank: Bank, frame: memoryview, begin: str) -> None:
    wanted = torch.zeros(ROW_BYTES, dtype=torch.uint8) if begin == "clear" else bank.bytes[3].cpu()
    bank.copy(5, [4, 6])  # memory for the list of slots is locked once, which waits for the device
    held = pending()
    if begin == "clear":
        bank.clear(1)
    else:
        bank.copy(3, [1, 2])
    assert not held.query()
    bank.save(1, frame)
    assert held.query()
    assert torch.equal(torch.frombuffer(frame, dtype=torch.uint8), wanted)


def test_a_load_waits_until_the_slot_has_been_copied_from(bank: Bank, frame: memoryview) -> None:
    wanted = bank.bytes[3].cpu()
    pending()
    bank.copy(3, [1])
    bank.load(3, frame)
    assert torch.equal(bank.bytes[1].cpu(), wanted)


def test_control_without_its_mark_a_copy_is_missed(bank: Bank, frame: memoryview) -> None:
    wanted = bank.bytes[3].cpu()
    pending()
    bank.copy(3, [1])
    bank._marks.clear()
    bank.save(1, frame)
    assert not torch.equal(torch.frombuffer(frame, dtype=torch.uint8), wanted)
