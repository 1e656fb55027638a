"""Forward passes of decode steps as CUDA graphs, one per row bucket.

Whole steps, with their draws, are `device_steps.py`'s; it shares the buckets and the static inputs.
`GraphedForward` is the pass alone, whose hidden rows tests and measurements look at.

A graph replays the same kernels on static buffers, so its bits are those of the eager step. A batch
of fewer rows than its bucket is filled up with padding rows: token 0 into slot 0, which holds no
actor. Batches with a row of several tokens, or with more rows than the largest bucket, take the
eager step, which stays as the twin for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from statevisor.guests.ops import RaggedBatch

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)

#: Lengths of prompts that are fed to the padding slot at start, so that kernels which only longer
#: batches use are compiled before the first one comes.
PROMPTS = (512, 1024)

#: Feeds a batch to its slots and returns one result row [R, ...] per row of the batch.
Step = Callable[[RaggedBatch], torch.Tensor]


def fitting_buckets(slots: int, buckets: Sequence[int] = BUCKETS) -> tuple[int, ...]:
    """The buckets a bank of so many slots can need, ascending: up to the first that holds all."""
    ascending = sorted(buckets)
    return tuple(
        size for index, size in enumerate(ascending) if index == 0 or ascending[index - 1] < slots
    )


class DecodeRows:
    """Static inputs of decode steps: one token per row, filled up with padding rows."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._fed = torch.zeros(2, capacity, dtype=torch.int64, device=device)
        self._count = torch.arange(capacity + 1, device=device)
        self._firsts = torch.ones(capacity, dtype=torch.bool, device=device)

    def batch(self, size: int) -> RaggedBatch:
        """The first `size` rows as a batch; views, so what is filled in later is seen."""
        return RaggedBatch(
            tokens=self._fed[0, :size],
            slots=self._fed[1, :size],
            starts=self._count[: size + 1],
            rows=self._count[:size],
            firsts=self._firsts[:size],
            lasts=self._count[:size],
            longest=1,
        )

    def fill(self, batch: RaggedBatch, size: int) -> None:
        """Put a batch's rows first and padding rows behind them, up to `size` rows."""
        rows = batch.tokens.shape[0]
        self._fed[0, :rows].copy_(batch.tokens, non_blocking=True)
        self._fed[1, :rows].copy_(batch.slots, non_blocking=True)
        if rows < size:
            self._fed[:, rows:size].zero_()


class GraphedForward:
    """A step that replays a graph where one fits; the same bits as the step it wraps.

    A returned tensor is valid until the next call. All calls come from one thread and one stream.
    """

    def __init__(
        self, step: Step, *, slots: int, device: torch.device, buckets: Sequence[int] = BUCKETS
    ) -> None:
        self.eager = step
        self.buckets = fitting_buckets(slots, buckets)
        self._rows = DecodeRows(self.buckets[-1], device)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    def capture(self) -> None:
        """Record a graph for every bucket, largest first, so that all share the largest's memory.

        Runs padding rows, so it modifies slot 0.
        """
        for tokens in PROMPTS:
            self.eager(prompt(tokens, self._rows.batch(1).slots.device))
        pool = None
        for size in reversed(self.buckets):
            graph, result = record(partial(self.eager, self._rows.batch(size)), pool)
            pool = graph.pool()
            self._graphs[size] = graph, result

    def __call__(self, batch: RaggedBatch) -> torch.Tensor:
        """Feed a batch; returns [R, ...]."""
        rows = batch.slots.shape[0]
        size = next((size for size in self.buckets if rows <= size), None)
        if batch.longest > 1 or size not in self._graphs:
            return self.eager(batch)
        self._rows.fill(batch, size)
        graph, result = self._graphs[size]
        graph.replay()
        return result[:rows]


def record(
    step: Callable[[], torch.Tensor], pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A graph of what a step launches, and the result it writes; pool: another graph's memory."""
    # Outside the capture first: kernels are compiled and loaded, libraries set up.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = step()
    return graph, result


def prompt(tokens: int, device: torch.device) -> RaggedBatch:
    """One padding row of many tokens."""
    zeros = torch.zeros(tokens, dtype=torch.int64, device=device)
    return RaggedBatch(
        tokens=zeros,
        slots=torch.zeros(1, dtype=torch.int64, device=device),
        starts=torch.tensor([0, tokens], device=device),
        rows=zeros,
        firsts=torch.arange(tokens, device=device) == 0,
        lasts=torch.tensor([tokens - 1], device=device),
        longest=tokens,
    )
