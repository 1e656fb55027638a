"""Host memory of plans on the device: what goes out to it and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from statevisor.guests.device_results import DETAILS
from statevisor.guests.mixed_rows import Size, size_of, write
from statevisor.guests.step_rows import GIVEN, POSITION, QUIET, TOKEN, WIDTH, entries, fill
from statevisor.hypervisor.plan import MOST_TIMES, Row, StepPlan


@dataclass(slots=True)
class Ticket:
    """A plan on its way: its rows, and where its results arrive."""

    rows: tuple[Row, ...]
    places: NDArray[np.int64]  #: of the rows among the results
    results: torch.Tensor  #: [times, R, 2] on the host
    details: torch.Tensor | None
    done: torch.cuda.Event | None


class _Memory:
    """Memory that the device reads or writes at some time behind a call."""

    def __init__(self, *, pinned: bool) -> None:
        self.done = torch.cuda.Event() if pinned else None

    def settle(self) -> None:
        """Wait until the device has done with it."""
        if self.done is not None:
            self.done.synchronize()

    def mark(self) -> None:
        """What has been begun by now is the last that the device does with it."""
        if self.done is not None:
            self.done.record()


class HostRows(_Memory):
    """A plan's table, its tokens and its biases; page-locked where the device is a GPU."""

    def __init__(self, rows: int, batch: torch.Tensor, *, pinned: bool) -> None:
        """batch: memory for the tokens of a step of some size."""
        super().__init__(pinned=pinned)
        self.table = torch.zeros(rows, WIDTH, dtype=torch.int64, pin_memory=pinned)
        self.batch = batch
        self.rows: tuple[Row, ...] = ()
        self.size: int | Size | None = None  #: rows of a decode step; or of which size; None: none
        self.count = 0  #: rows of the table that count
        self.places = np.zeros(0, dtype=np.int64)  #: of the plan's rows in the table
        self.draws = False  #: whether any row draws
        self.described = False  #: and any with its log probabilities
        self.ids = torch.zeros(0, dtype=torch.int64)
        self.amounts = torch.zeros(0, dtype=torch.float32)
        self._view: NDArray[np.int64] = self.table.numpy()
        self._pinned = pinned

    def fill(self, plan: StepPlan, buckets: Sequence[int], sizes: Sequence[Size]) -> None:
        """Rows of a plan, and padding rows up to the bucket or size that holds them, if any."""
        rows = plan.rows
        lengths = [len(row.tokens) for row in rows]
        if max(lengths) == 1:
            self.size = next((size for size in buckets if len(rows) <= size), None)
        else:
            self.size = size_of(lengths, sizes)
        if isinstance(self.size, Size):
            self._fill_mixed(rows, lengths, self.size)
        else:
            self.count = self.size or len(rows)
            self.places = np.arange(len(rows))
            fill(self._view, rows)
            self._view[len(rows) : self.count] = QUIET
        if plan.offset:
            self._view[self.places, POSITION] += plan.offset
        draws = [row.draw for row in rows]
        self.draws = any(draw is not None for draw in draws)
        self.described = any(draw and draw.settings.logprobs is not None for draw in draws)
        biased = {
            place: draw
            for place, draw in zip(self.places.tolist(), draws, strict=True)
            if draw is not None and draw.bias
        }
        ids, amounts = entries(self._view, biased)
        self.ids = self._placed(torch.tensor(ids, dtype=torch.int64))
        self.amounts = self._placed(torch.tensor(amounts, dtype=torch.float32))
        self.rows = rows

    def _fill_mixed(self, rows: Sequence[Row], lengths: Sequence[int], size: Size) -> None:
        singles = [at for at, length in enumerate(lengths) if length == 1]
        longer = [at for at, length in enumerate(lengths) if length > 1]
        self.count = size.rows
        self.places = np.zeros(len(rows), dtype=np.int64)
        self.places[singles] = range(len(singles))
        self.places[longer] = range(size.singles, size.singles + len(longer))
        fill(self._view, [rows[at] for at in singles])
        self._view[len(singles) : size.rows] = QUIET
        fill(self._view[size.singles :], [rows[at] for at in longer])
        # padding behind the longer rows has no token, not even one to be put in
        self._view[size.singles + len(longer) : size.rows, TOKEN] = GIVEN
        write(self.batch, size, [rows[at].tokens for at in longer])

    def _placed(self, biases: torch.Tensor) -> torch.Tensor:
        return biases.pin_memory() if self._pinned and len(biases) else biases


class HostResults(_Memory):
    """Results of a plan; page-locked where the device is a GPU."""

    def __init__(self, rows: int, *, pinned: bool) -> None:
        super().__init__(pinned=pinned)
        shape, dtype = (MOST_TIMES, rows), torch.int64
        self._results = torch.zeros(*shape, 2, dtype=dtype, pin_memory=pinned)
        self._details = torch.zeros(*shape, DETAILS, dtype=dtype, pin_memory=pinned)

    def take(self, host: HostRows, time: int, results: torch.Tensor, details: torch.Tensor) -> None:
        """Copy results behind one of a plan's steps."""
        self._results[time, : host.count].copy_(results[: host.count], non_blocking=True)
        if host.described:
            self._details[time, : host.count].copy_(details[: host.count], non_blocking=True)

    def ticket(self, host: HostRows, times: int) -> Ticket:
        """Mark on the stream where all results have arrived."""
        self.mark()
        return Ticket(
            host.rows,
            host.places,
            self._results[:times, : host.count],
            self._details[:times, : host.count] if host.described else None,
            self.done,
        )
