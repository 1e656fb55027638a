"""Forward passes with rows of several tokens as CUDA graphs, one per number of tokens and rows.

To launch such a pass kernel by kernel takes the host longer than a GPU takes to run it, up to about
a thousand tokens. A batch is copied into the static buffers of the smallest graph that holds it and
filled up: padding tokens belong to a padding row, padding rows have no token, and their slot is 0,
which holds no actor and is not written. So every row's bits are those of the eager pass, which
stays as the twin for tests and takes the batches that no graph holds.

Whole steps, with their draws, are `device_steps.py`'s. This is the pass alone, whose hidden rows
tests and measurements look at.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from statevisor.guests.graphs import Step, fitting_buckets, record
from statevisor.guests.ops import RaggedBatch

TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048)
ROWS = (1, 4, 16, 64, 256, 1024)

#: Tokens and rows of a graph.
Size = tuple[int, int]


class PromptRows:
    """Static inputs of passes of up to so many tokens and rows, filled up with padding."""

    def __init__(self, tokens: int, rows: int, device: torch.device) -> None:
        self._tokens = torch.zeros(tokens, dtype=torch.int64, device=device)
        self._owners = torch.zeros(tokens, dtype=torch.int64, device=device)
        self._firsts = torch.zeros(tokens, dtype=torch.bool, device=device)
        self._slots = torch.zeros(rows, dtype=torch.int64, device=device)
        self._lasts = torch.zeros(rows, dtype=torch.int64, device=device)
        self._starts = torch.zeros(rows + 1, dtype=torch.int64, device=device)

    def batch(self, size: Size) -> RaggedBatch:
        """The first tokens and rows as a batch; views, so what is filled in later is seen."""
        tokens, rows = size
        return RaggedBatch(
            tokens=self._tokens[:tokens],
            slots=self._slots[:rows],
            starts=self._starts[: rows + 1],
            rows=self._owners[:tokens],
            firsts=self._firsts[:tokens],
            lasts=self._lasts[:rows],
            # What a graph holds depends on whether it is one, no further.
            longest=2,
        )

    def fill(self, batch: RaggedBatch, size: Size) -> None:
        """Put a batch's tokens and rows first and padding behind them, up to `size`.

        With padding tokens there must be a padding row, to which they belong.
        """
        tokens, rows = len(batch.tokens), len(batch.slots)
        assert tokens == size[0] or rows < size[1], f"no padding row in {size} for {rows} rows"
        for place, given, most, rest in (
            (self._tokens, batch.tokens, size[0], 0),
            (self._owners, batch.rows, size[0], rows),
            (self._firsts, batch.firsts, size[0], False),
            (self._slots, batch.slots, size[1], 0),
            (self._lasts, batch.lasts, size[1], 0),
            # Behind the last row's end there is none: padding rows are empty.
            (self._starts, batch.starts, size[1] + 1, tokens),
        ):
            place[: len(given)].copy_(given, non_blocking=True)
            if len(given) < most:
                place[len(given) : most].fill_(rest)


class PromptGraphs:
    """A step that replays a graph where one holds the batch; the same bits as the step it wraps.

    Batches of single tokens take the wrapped step. A returned tensor is valid until the next call.
    All calls come from one thread and one stream.
    """

    def __init__(
        self,
        step: Step,
        *,
        tokens: int,
        slots: int,
        device: torch.device,
        sizes: Sequence[Size] | None = None,
        eager_from: int | None = None,
    ) -> None:
        """tokens: most of one step. sizes: of the graphs, instead of all that a step may need.

        eager_from: tokens of the longest row from which the wrapped step is taken.
        """
        self.eager = step
        self._eager_from = eager_from
        self.sizes = tuple(sorted(prompt_sizes(tokens, slots) if sizes is None else sizes))
        most_rows = max(rows for _, rows in self.sizes)
        self._rows = PromptRows(max(count for count, _ in self.sizes), most_rows, device)
        self._graphs: dict[Size, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    def capture(self) -> None:
        """Record a graph for every size, largest first, so that all share the largest's memory.

        Runs padding rows alone, so it modifies no slot.
        """
        pool = None
        with torch.inference_mode():
            for size in reversed(self.sizes):
                batch = self._rows.batch(size)
                self._rows.fill(_nothing(batch), size)
                graph, result = record(partial(self.eager, batch), pool)
                pool = graph.pool()
                self._graphs[size] = graph, result

    def size(self, batch: RaggedBatch) -> Size | None:
        """Of the graph that takes the batch: fewest tokens, then fewest rows; None: no graph."""
        tokens, rows = len(batch.tokens), len(batch.slots)
        if batch.longest == 1 or (self._eager_from and batch.longest >= self._eager_from):
            return None
        for most, seats in self.sizes:
            if (tokens == most and rows <= seats) or (tokens < most and rows < seats):
                return most, seats
        return None

    def __call__(self, batch: RaggedBatch) -> torch.Tensor:
        """Feed a batch; returns [R, ...]."""
        size = self.size(batch)
        if size is None:
            return self.eager(batch)
        self._rows.fill(batch, size)
        graph, result = self._graphs.get(size, (None, None))
        if graph is None or result is None:
            result = self.eager(self._rows.batch(size))
        else:
            graph.replay()
        return result[: len(batch.slots)]


def prompt_sizes(tokens: int, slots: int) -> tuple[Size, ...]:
    """Sizes that steps of so many tokens and slots can need: up to the first that holds all."""
    # One row more than there are slots: the one that padding tokens belong to.
    most = slots + 1
    return tuple(
        (count, min(rows, most))
        for count in fitting_buckets(tokens, TOKENS)
        for rows in fitting_buckets(min(count, most), ROWS)
    )


def _nothing(batch: RaggedBatch) -> RaggedBatch:
    """Like the batch, with neither tokens nor rows."""
    return RaggedBatch(
        tokens=batch.tokens[:0],
        slots=batch.slots[:0],
        starts=batch.starts.new_zeros(1),
        rows=batch.rows[:0],
        firsts=batch.firsts[:0],
        lasts=batch.lasts[:0],
        longest=0,
    )
