"""The toy guest with a state as large as a real one's: moves cost what they cost, steps nothing."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from statevisor.guests.pages import pages
from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.layout import Layout, StateFamily
from statevisor.hypervisor.plan import RowResult, StepPlan

_STAMP_BYTES = 8


class WideGuest(ToyGuest):
    """A toy state, and noise up to `row_bytes` that every token changes at both ends."""

    def __init__(self, row_bytes: int, slots: int) -> None:
        super().__init__(name="wide", slots=slots)
        self._core = super().layout
        self._wide = row_bytes - self._core.row_bytes
        self._noise = os.urandom(self._wide)
        self._memory = pages((slots + 1) * row_bytes)

    @property
    def layout(self) -> Layout:
        noise = StateFamily(name="noise", shape=(self._wide,), dtype="U8")
        return Layout(families=(*self._core.families, noise))

    def step(self, plan: StepPlan) -> tuple[RowResult, ...]:
        results = super().step(plan)
        for row in plan.rows:
            stamp = self._bank[row.slot][0].to_bytes(_STAMP_BYTES, "little")
            noise = self._row_of(row.slot)
            noise[:_STAMP_BYTES] = noise[-_STAMP_BYTES:] = stamp
        return results

    def clear(self, slot: int) -> None:
        super().clear(slot)
        self._row_of(slot)[:] = self._noise

    def save(self, slot: int, out: memoryview, start: int | None = None) -> None:
        core, noise, at = self._cut(out, start or 0)
        super().save(slot, core, start)
        _copy(self._row_of(slot)[at : at + len(noise)], noise)

    def load(self, slot: int, row: memoryview, start: int | None = None) -> None:
        core, noise, at = self._cut(row, start or 0)
        super().load(slot, core, start)
        _copy(noise, self._row_of(slot)[at : at + len(noise)])

    def copy(self, source: int, targets: Sequence[int]) -> None:
        super().copy(source, targets)
        for target in targets:
            _copy(self._row_of(source), self._row_of(target))

    def frames(self, count: int) -> memoryview:
        return pages(count * self.layout.row_bytes)

    def _cut(self, part: memoryview, start: int) -> tuple[memoryview, memoryview, int]:
        """What of a part is the toy's, and what is noise, and where in the noise."""
        border = max(self._core.row_bytes - start, 0)
        return part[:border], part[border:], max(start - self._core.row_bytes, 0)

    def _row_of(self, slot: int) -> memoryview:
        """The noise of a slot, where it would lie in a bank of whole rows."""
        end = (slot + 1) * (self._core.row_bytes + self._wide)
        return self._memory[end - self._wide : end]


def _copy(row: memoryview, out: memoryview) -> None:
    """Copy without the interpreter's lock, as a device does."""
    if row.readonly:
        out[:] = row
    else:
        into, of = ((ctypes.c_char * len(row)).from_buffer(memory) for memory in (out, row))
        ctypes.memmove(into, of, len(row))
