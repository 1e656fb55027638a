"""Memory that begins on a page, in pages as large as the system has.

A disk that writes straight into memory is told every page of it, and so is a GPU: 8 MiB are 2048
small pages, which may lie anywhere, or 4 huge ones. Measured: one direct read of 8 MiB takes 2.9 ms
into huge pages, and 3.5 to 13 ms into small ones, the longer the more scattered they lie.
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import Final

#: A huge page of x86-64, and of arm64 with pages of 4 KiB.
HUGE_BYTES: Final = 2 << 20


def pages(nbytes: int) -> memoryview:
    """Zero bytes, of which the untouched ones cost nothing; taken huge page by huge page."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if nbytes < HUGE_BYTES:
        return memoryview(mmap.mmap(-1, max(nbytes, 1), flags=flags))[:nbytes]
    mapped = mmap.mmap(-1, nbytes + HUGE_BYTES, flags=flags)
    with suppress(OSError):  # a system without: small pages do, at their pace
        mapped.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(mapped)) % HUGE_BYTES
    return memoryview(mapped)[start : start + nbytes]
