"""Host memory on a GPU machine is page-locked, exactly as large as asked for, and given back."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest
import torch

from statevisor.guests.bank import Bank
from statevisor.guests.host_memory import _lock, host_memory
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
    torch.cuda.synchronize()
    row = frames[ROW_BYTES : 2 * ROW_BYTES]
    bank.save(1, row)
    bank.load(2, row)
    assert torch.equal(bank.bytes[1], bank.bytes[2])


def test_memory_is_unlocked_with_its_last_view() -> None:
    for _ in range(50):  # 50 x 256 MiB at once would not be given back if one stayed locked
        memory = host_memory(256 * MIB, locked=True)
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        assert is_locked(address)
        del memory
        gc.collect()
        assert not is_locked(address)


def test_too_much_is_refused() -> None:
    with pytest.raises((Unavailable, OSError)):
        host_memory(1 << 46, locked=True)


def test_a_refused_lock_leaves_no_error_behind() -> None:
    pages = np.zeros(MIB, dtype=np.uint8)
    _lock(pages)
    with pytest.raises(Unavailable, match="already"):
        _lock(pages)
    assert torch.zeros(1, device="cuda").item() == 0


def is_locked(address: int) -> bool:
    byte = (ctypes.c_byte * 1).from_address(address)  # looked up, never read
    return torch.frombuffer(byte, dtype=torch.uint8).is_pinned()
