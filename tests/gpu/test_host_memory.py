"""Host memory on a GPU machine is page-locked, exactly as large as asked for, and given back."""

from __future__ import annotations

import gc

import pytest
import torch

from statevisor.guests.bank import Bank
from statevisor.guests.host_memory import host_memory
from statevisor.hypervisor.errors import Unavailable
from statevisor.hypervisor.layout import Layout, StateFamily

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

MIB = 1 << 20
ROW_BYTES = 9 * MIB  # no power of two


@pytest.fixture
def bank() -> Bank:
    layout = Layout(families=(StateFamily(name="wkv", shape=(1, ROW_BYTES // 4), dtype="F32"),))
    return Bank(layout, slots=2, device="cuda")


def test_frames_are_locked_and_rows_come_back(bank: Bank) -> None:
    frames = bank.frames(3)
    assert len(frames) == 3 * ROW_BYTES
    assert torch.frombuffer(frames, dtype=torch.uint8).is_pinned()
    bank.bytes[1].random_(0, 256)
    row = frames[ROW_BYTES : 2 * ROW_BYTES]
    bank.save(1, row)
    bank.load(2, row)
    assert torch.equal(bank.bytes[1], bank.bytes[2])


def test_memory_is_unlocked_with_its_last_view() -> None:
    runtime = torch.cuda.cudart()
    for _ in range(50):  # 50 x 256 MiB at once would not be given back if one stayed locked
        memory = host_memory(256 * MIB, locked=True)
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        del memory
        gc.collect()
        assert runtime.cudaHostUnregister(address) != runtime.cudaError.success


def test_too_much_is_refused() -> None:
    with pytest.raises((Unavailable, OSError)):
        host_memory(1 << 46, locked=True)
