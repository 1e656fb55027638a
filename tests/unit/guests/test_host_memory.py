"""Host memory for frames: on whole pages, exactly as large as asked for, given back."""

from __future__ import annotations

import ctypes
import gc

import pytest
import torch

from statevisor.guests import host_memory as subject
from statevisor.guests.host_memory import host_memory
from statevisor.hypervisor.errors import Unavailable


def address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Runtime:
    """Stands for the CUDA runtime."""

    class cudaError:
        success = 0

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, at: int, nbytes: int, flags: int) -> int:
        if not self.error:
            self.locked[at] = nbytes
        return self.error

    def cudaHostUnregister(self, at: int) -> int:
        del self.locked[at]
        return 0

    def cudaGetErrorString(self, error: int) -> str:
        return f"error {error}"


@pytest.mark.parametrize("nbytes", [1, 4095, 5000, 3 << 20])
def test_it_begins_on_a_page_and_is_as_large_as_asked_for(nbytes: int) -> None:
    memory = host_memory(nbytes, locked=False)
    assert address(memory) % 4096 == 0
    assert len(memory) == nbytes
    assert not any(memory[:5000])
    torch.frombuffer(memory, dtype=torch.uint8).fill_(7)
    assert memory[nbytes - 1] == 7


def test_no_bytes_are_no_bytes() -> None:
    assert len(host_memory(0, locked=True)) == 0


def test_locked_memory_is_not_rounded_up_and_unlocked_with_its_last_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = Runtime()
    monkeypatch.setattr(subject.torch.cuda, "cudart", lambda: runtime)
    memory = host_memory(9 << 20, locked=True)
    assert runtime.locked == {address(memory): 9 << 20}
    row = memory[4096:8192]
    del memory
    gc.collect()
    assert runtime.locked
    del row
    gc.collect()
    assert not runtime.locked


def test_memory_that_cannot_be_locked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject.torch.cuda, "cudart", lambda: Runtime(error=2))
    monkeypatch.setattr(subject, "_forget_error", lambda: None)  # asks a device
    with pytest.raises(Unavailable, match="cannot lock 4096 bytes"):
        host_memory(4096, locked=True)


@pytest.mark.parametrize("nbytes", [1 << 60, 1 << 70])
def test_more_than_there_is_is_refused_in_words(nbytes: int) -> None:
    with pytest.raises(Unavailable, match="no room"):
        host_memory(nbytes, locked=False)
