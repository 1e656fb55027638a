"""Host memory of one plan on the device: what goes out to it and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from statevisor.guests.device_results import DETAILS
from statevisor.guests.step_rows import POSITION, QUIET, WIDTH, entries, fill
from statevisor.hypervisor.plan import MOST_TIMES, Row, StepPlan


@dataclass(slots=True)
class Ticket:
    """A plan on its way: its rows, and where its results arrive."""

    rows: tuple[Row, ...]
    results: torch.Tensor  #: [times, R, 2] on the host
    details: torch.Tensor | None
    done: torch.cuda.Event | None


class HostRows:
    """A plan's table, biases and results; page-locked where the device is a GPU.

    A plan of the same rows as before, whose draws are further on, costs next to nothing.
    """

    def __init__(self, rows: int, *, pinned: bool) -> None:
        self.table = torch.zeros(rows, WIDTH, dtype=torch.int64, pin_memory=pinned)
        self.rows: tuple[Row, ...] = ()
        self.size = 0  #: rows of the table that count: of the bucket, or of the plan
        self.alone = True  #: whether no bucket holds the plan
        self.draws = False  #: whether any row draws
        self.ids = torch.zeros(0, dtype=torch.int64)
        self.amounts = torch.zeros(0, dtype=torch.float32)
        self._view: NDArray[np.int64] = self.table.numpy()
        self._positions = self._view[:0, POSITION].copy()
        self._described = False
        self._pinned = pinned
        shape, dtype = (MOST_TIMES, rows), torch.int64
        self._results = torch.zeros(*shape, 2, dtype=dtype, pin_memory=pinned)
        self._details = torch.zeros(*shape, DETAILS, dtype=dtype, pin_memory=pinned)
        self._done = torch.cuda.Event() if pinned else None

    def settle(self) -> None:
        """Wait until the device has done with this memory."""
        if self._done is not None:
            self._done.synchronize()

    def fill(self, plan: StepPlan, buckets: Sequence[int]) -> None:
        """Rows of a plan, then padding rows up to the bucket that holds them."""
        if plan.rows is not self.rows:
            self._fill(plan.rows, buckets)
        np.add(self._positions, plan.offset, out=self._view[: len(self.rows), POSITION])

    def _fill(self, rows: tuple[Row, ...], buckets: Sequence[int]) -> None:
        count = len(rows)
        size = next((size for size in buckets if count <= size), None)
        self.alone = size is None or any(len(row.tokens) > 1 for row in rows)
        self.size = count if self.alone or size is None else size
        self.rows = ()  # until all is written
        fill(self._view, rows)
        self._view[count : self.size] = QUIET
        self._positions = self._view[:count, POSITION].copy()
        draws = [row.draw for row in rows]
        self.draws = any(draw is not None for draw in draws)
        self._described = any(draw and draw.settings.logprobs is not None for draw in draws)
        ids, amounts = entries(self._view, draws)
        self.ids = self._placed(torch.tensor(ids, dtype=torch.int64))
        self.amounts = self._placed(torch.tensor(amounts, dtype=torch.float32))
        self.rows = rows

    def _placed(self, biases: torch.Tensor) -> torch.Tensor:
        return biases.pin_memory() if self._pinned and len(biases) else biases

    def take(self, time: int, results: torch.Tensor, details: torch.Tensor) -> None:
        """Copy results behind one of the plan's steps."""
        count = len(self.rows)
        self._results[time, :count].copy_(results[:count], non_blocking=True)
        if self._described:
            self._details[time, :count].copy_(details[:count], non_blocking=True)

    def ticket(self, times: int) -> Ticket:
        """Mark on the stream where all results have arrived."""
        count = len(self.rows)
        if self._done is not None:
            self._done.record()
        return Ticket(
            self.rows,
            self._results[:times, :count],
            self._details[:times, :count] if self._described else None,
            self._done,
        )
