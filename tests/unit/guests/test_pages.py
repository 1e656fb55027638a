"""Memory in large pages: where it begins, how long it is, and that a system without does too."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest

from statevisor.guests import pages as subject
from statevisor.guests.pages import HUGE_BYTES, pages


def address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@pytest.mark.parametrize("nbytes", [1, 4096, HUGE_BYTES - 1, HUGE_BYTES, 3 * HUGE_BYTES + 5])
def test_it_is_as_long_as_asked_for_and_begins_on_a_page_as_large_as_fits(nbytes: int) -> None:
    memory = pages(nbytes)
    assert len(memory) == nbytes
    assert address(memory) % (HUGE_BYTES if nbytes >= HUGE_BYTES else 4096) == 0
    assert not memory[0]
    assert not memory[-1]
    memory[-1] = 7
    assert memory[nbytes - 1] == 7


def test_no_bytes_are_no_bytes() -> None:
    assert len(pages(0)) == 0


def test_it_stays_while_a_part_of_it_is_held() -> None:
    row = pages(2 * HUGE_BYTES)[HUGE_BYTES : HUGE_BYTES + 4096]
    row[:] = b"x" * 4096
    assert bytes(row) == b"x" * 4096


def test_a_system_without_large_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(mmap.mmap):
        def madvise(self, *args: int) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(subject.mmap, "mmap", Small)
    memory = pages(HUGE_BYTES)
    memory[-1] = 7
    assert len(memory) == HUGE_BYTES


def test_touching_it_takes_large_pages() -> None:
    modes = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not modes.exists() or "[never]" in modes.read_text():
        pytest.skip("this kernel gives no large pages")
    memory = pages(8 * HUGE_BYTES)
    before = _huge_kib(address(memory))
    memory[:] = bytes(len(memory))
    assert before == 0 < _huge_kib(address(memory))


def _huge_kib(at: int) -> int:
    """Of the mapping that holds an address, the KiB in huge pages."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            start, stop = (int(edge, 16) for edge in name.split("-"))
            inside = start <= at < stop
        elif inside and name == "AnonHugePages:":
            return int(rest.split()[0])
    return 0
