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


def saved(bank: Bank, slot: int) -> torch.Tensor:
    frame = bank.frames(1)
    bank.save(slot, frame)
    return torch.frombuffer(frame, dtype=torch.uint8).clone()


def test_a_save_waits_for_no_step_of_another_slot(bank: Bank) -> None:
    wanted = bank.bytes[1].cpu()
    held = pending()
    assert torch.equal(saved(bank, 1), wanted)
    assert not held.query()


def test_a_load_waits_for_no_step_and_the_next_step_sees_it(bank: Bank) -> None:
    frame = bank.frames(1)
    torch.frombuffer(frame, dtype=torch.uint8).fill_(7)
    held = pending()
    bank.load(2, frame)
    assert not held.query()
    assert bool((bank.bytes[2] == 7).all())


@pytest.mark.parametrize("begin", ["clear", "copy"])
def test_a_save_sees_what_was_begun_on_its_slot(bank: Bank, begin: str) -> None:
    wanted = torch.zeros(ROW_BYTES, dtype=torch.uint8) if begin == "clear" else bank.bytes[3].cpu()
    held = pending()
    if begin == "clear":
        bank.clear(1)
    else:
        bank.copy(3, [1, 2])
    assert not held.query()
    assert torch.equal(saved(bank, 1), wanted)
    assert held.query()


def test_a_load_waits_until_the_slot_has_been_copied_from(bank: Bank) -> None:
    wanted, frame = bank.bytes[3].cpu(), bank.frames(1)
    pending()
    bank.copy(3, [1])
    bank.load(3, frame)
    assert torch.equal(bank.bytes[1].cpu(), wanted)


def test_control_without_its_mark_a_copy_is_missed(bank: Bank) -> None:
    wanted = bank.bytes[3].cpu()
    pending()
    bank.copy(3, [1])
    bank._marks.clear()
    assert not torch.equal(saved(bank, 1), wanted)
