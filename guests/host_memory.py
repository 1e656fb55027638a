"""Host memory that a device and a disk can both reach without a copy.

It begins on a page, so that a disk can write straight into it. The framework's own page-locked
memory is no use for that: its allocator rounds up to powers of two, so that 9 GiB take 16.
"""

from __future__ import annotations

import contextlib
import weakref

import numpy as np
import torch

from statevisor.guests.pages import pages
from statevisor.hypervisor.errors import Unavailable


def host_memory(nbytes: int, *, locked: bool) -> memoryview:
    """Zero bytes, of which the untouched ones cost nothing; all are taken at once if `locked`.

    `locked`: page-locked for the current CUDA device until the last view of it is gone.
    Raises: Unavailable (the machine does not have, or does not lock, that much).
    """
    try:
        memory = np.frombuffer(pages(nbytes), dtype=np.uint8)
    except (OSError, OverflowError) as error:
        raise Unavailable(
            f"there is no room for {nbytes} bytes of memory",
            hint="Serve with fewer --slots or a smaller --host-bytes.",
        ) from error
    if locked and nbytes:
        _lock(memory)
    return memoryview(memory)


def _lock(memory: np.ndarray) -> None:
    address, runtime = memory.ctypes.data, torch.cuda.cudart()
    error = runtime.cudaHostRegister(address, memory.nbytes, 0)
    if error != runtime.cudaError.success:
        _forget_error()
        raise Unavailable(
            f"cannot lock {memory.nbytes} bytes of host memory: "
            f"{runtime.cudaGetErrorString(error)}",
            hint="Serve with a smaller --host-bytes.",
        )
    weakref.finalize(memory, runtime.cudaHostUnregister, address).atexit = False


def _forget_error() -> None:
    """The runtime keeps a failed call's error, and whoever launches next would be blamed for it."""
    with contextlib.suppress(torch.AcceleratorError):
        torch.zeros(1, device="cuda")
