"""The bank: one contiguous buffer with one row per slot, and typed views of its families.

Row 0 is the padding row. The bytes of a row are those of the layout, so that to clear, save, load
or copy a slot is one copy. The bank knows no positions and no actors: whether a slot's bytes mean
anything is the caller's business, and `clear` makes them mean "no token absorbed".

On a GPU `clear` and `copy` go with the steps, on the caller's stream; `save` and `load` have a
stream of their own, so that neither waits for steps of other slots nor holds them up. What the
former have begun on a slot is marked by an event, for which the latter wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from types import MappingProxyType

import torch

from statevisor.guests.host_memory import host_memory
from statevisor.hypervisor.errors import CapabilityMissing
from statevisor.hypervisor.layout import Layout

TORCH_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F64": torch.float64,
        "I64": torch.int64,
        "I32": torch.int32,
        "U8": torch.uint8,
    }
)
#: Rows and families begin at multiples of this, so that no operator meets two alignments.
ALIGNMENT = 64


class Bank:
    """Rows 0..slots of one layout on one device. Strides are torch's, hence int64."""

    def __init__(self, layout: Layout, slots: int, device: torch.device | str = "cpu") -> None:
        """Raises: CapabilityMissing (a family would not lie at an aligned offset)."""
        for family in layout.families:
            if family.nbytes % ALIGNMENT:
                raise CapabilityMissing(
                    f"family {family.name} has {family.nbytes} bytes a row, not {ALIGNMENT}-aligned"
                )
        self.layout = layout
        self.slots = slots
        self.bytes = _zeros(slots + 1, layout.row_bytes, torch.device(device))
        self.views = {family.name: self._view(family.name) for family in layout.families}
        self._layers = {name: view.unbind(1) for name, view in self.views.items()}
        self._pinned = self.bytes.is_cuda
        self._moves = torch.cuda.Stream(self.bytes.device) if self._pinned else None
        self._marks: dict[int, torch.cuda.Event] = {}  #: by slot: the end of its last clear or copy
        if self._pinned:
            torch.cuda.current_stream(self.bytes.device).synchronize()  # the zeros are there
        self._staging = torch.empty(layout.row_bytes, dtype=torch.uint8, pin_memory=self._pinned)

    def layers(self, name: str) -> tuple[torch.Tensor, ...]:
        """One view [slots+1, ...] per layer of a family; writes go to the bank."""
        return self._layers[name]

    def clear(self, slot: int) -> None:
        """Make a slot the empty state: all zero bytes."""
        self._row(slot).zero_()
        self._mark(slot)

    def save(self, slot: int, out: memoryview, start: int | None = None) -> None:
        """Copy a row; with `start`, what `out` holds of it from that byte on; complete on return.

        No step on its way may have the slot.
        """
        with self._beside(slot):
            torch.frombuffer(out, dtype=torch.uint8).copy_(self._part(slot, start, out.nbytes))

    def load(self, slot: int, row: memoryview, start: int | None = None) -> None:
        """Overwrite a slot with a row; with `start`, from there on with a part; complete on return.

        The row may be read-only. No step on its way may have the slot.
        """
        part = self._part(slot, start, row.nbytes)
        with self._beside(slot):
            if row.readonly:
                # torch.frombuffer warns of memory it must not write: such rows take the staging.
                staged = self._staging[: row.nbytes]
                memoryview(staged.numpy())[:] = row.cast("B")
                part.copy_(staged)
            else:
                part.copy_(torch.frombuffer(row, dtype=torch.uint8))

    def copy(self, source: int, targets: Sequence[int]) -> None:
        """Copy a row onto others; all targets at once."""
        row = self._row(source)
        if len(targets) == 1:
            self._row(targets[0]).copy_(row)
        elif targets:
            index = torch.tensor([self._check(slot) for slot in targets])
            if self._pinned:  # from other memory the copy of the index would wait for the steps
                index = index.pin_memory().to(self.bytes.device, non_blocking=True)
            # Eight bytes an element, since the framework copies by index element by element; from a
            # clone, since it refuses to copy within one tensor.
            self.bytes.view(torch.int64)[index] = row.view(torch.int64).clone()
        self._mark(source, *targets)

    def _mark(self, *slots: int) -> None:
        if self._moves is not None:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self.bytes.device))
            self._marks.update(dict.fromkeys(slots, event))

    @contextmanager
    def _beside(self, slot: int) -> Iterator[None]:
        if self._moves is None:
            yield
            return
        mark = self._marks.pop(slot, None)
        if mark is not None:
            self._moves.wait_event(mark)
        with torch.cuda.stream(self._moves):
            yield
        self._moves.synchronize()

    def frames(self, count: int) -> memoryview:
        """Host memory for `count` rows, on whole pages, page-locked if the bank is on a GPU."""
        return host_memory(count * self.layout.row_bytes, locked=self._pinned)

    def _check(self, slot: int) -> int:
        # A negative index would wrap to the last slot and 0 would read or write the padding row.
        if not 1 <= slot <= self.slots:
            raise IndexError(f"slot {slot} is not in 1..{self.slots}")
        return slot

    def _row(self, slot: int) -> torch.Tensor:
        return self.bytes[self._check(slot)]

    def _part(self, slot: int, start: int | None, nbytes: int) -> torch.Tensor:
        if start is None:
            return self._row(slot)
        # a single byte would be copied to all of a longer part, and none to an empty one
        if not 0 <= start <= self.layout.row_bytes - nbytes:
            raise ValueError(f"bytes {start} to {start + nbytes} are not within a row")
        return self._row(slot)[start : start + nbytes]

    def _view(self, name: str) -> torch.Tensor:
        family = self.layout.family(name)
        typed = self.bytes.view(TORCH_DTYPES[family.dtype])
        first = self.layout.offset(name) // typed.element_size()
        return typed[:, first : first + prod(family.shape)].unflatten(1, family.shape)


def _zeros(rows: int, row_bytes: int, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(rows, row_bytes, dtype=torch.uint8, device=device)
    memory = host_memory(rows * row_bytes, locked=False)
    return torch.frombuffer(memory, dtype=torch.uint8).view(rows, row_bytes)
