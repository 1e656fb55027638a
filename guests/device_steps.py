"""Steps that run on the device from the drawn token before to the drawn token after.

One graph per bucket holds all of it: the tokens that rows follow, embedding, layers, head, biases,
the draw, and what log probabilities are made of. The host fills one table, starts the graph and an
event tells when the results lie in its memory; meanwhile it may submit the next step. Steps with a
row of several tokens launch the same kernels one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from statevisor.guests import sampling_triton, step_triton
from statevisor.guests.bank import Bank
from statevisor.guests.batch import pack
from statevisor.guests.device_results import DETAILS, read_results
from statevisor.guests.graphs import BUCKETS, PROMPTS, DecodeRows, fitting_buckets, prompt
from statevisor.guests.model import Model
from statevisor.guests.ops import RaggedBatch
from statevisor.guests.step_rows import QUIET, WIDTH, entries, fill
from statevisor.hypervisor.plan import Row, RowResult, StepPlan

#: Steps on their way at most, and host buffers: one more, for the step that is being read.
AHEAD = 2
#: Biases that fit the static buffers, over all rows; with more a step launches kernels one by one.
BIASES = 1 << 16
_FEW, _FEW_WARPS = 512, 4


class Penalties:
    """Biases of one step on the device: ids and amounts of all rows, and what they replaced."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.ids = torch.zeros(count, dtype=torch.int64, device=device)
        self.amounts = torch.zeros(count, dtype=torch.float32, device=device)
        self.saved = torch.zeros(count, dtype=torch.float32, device=device)

    def fill(self, ids: Sequence[int], amounts: Sequence[float]) -> None:
        """Put these in front; waits for earlier work of the stream."""
        if ids:
            self.ids[: len(ids)] = torch.tensor(ids)
            self.amounts[: len(ids)] = torch.tensor(amounts, dtype=torch.float32)


@dataclass(slots=True)
class Ticket:
    """A step on its way: its rows, and where its results arrive."""

    rows: tuple[Row, ...]
    results: torch.Tensor  #: [R, 2] on the host
    details: torch.Tensor | None
    done: torch.cuda.Event | None


class DeviceSteps:
    """`Steps` on a CUDA device (or, for tests, on the CPU by the interpreter, without graphs).

    All calls come from one thread and one stream.
    """

    ahead = AHEAD

    def __init__(self, model: Model, bank: Bank, buckets: Sequence[int] = BUCKETS) -> None:
        self._model = model
        self._bank = bank
        self.buckets = fitting_buckets(bank.slots, buckets)
        self._device = device = model.ops.device
        self._most = most = max(self.buckets[-1], bank.slots)
        self._batches = DecodeRows(self.buckets[-1], device)
        self._table = torch.zeros(most, WIDTH, dtype=torch.int64, device=device)
        self._last = torch.full((bank.slots + 1,), -1, dtype=torch.int64, device=device)
        self._results = torch.zeros(most, 2, dtype=torch.int64, device=device)
        self._details = torch.zeros(most, DETAILS, dtype=torch.int64, device=device)
        self._penalties = Penalties(BIASES, device)
        self._listed = self._lists(self.buckets[-1])
        self._hosts = [_HostRows(most, pinned=device.type == "cuda") for _ in range(AHEAD + 1)]
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._turn = 0

    def capture(self) -> None:
        """Record a graph for every bucket, largest first, so that all share the largest's memory.

        Runs padding rows, so it modifies slot 0.
        """
        with torch.inference_mode():
            self._table[:] = torch.from_numpy(QUIET)
            for tokens in PROMPTS:
                self._model.forward(self._bank, prompt(tokens, self._device))
            pool = None
            for size in reversed(self.buckets):
                # Outside the capture first: kernels are compiled and loaded, libraries set up.
                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    self._decode(size)
                torch.cuda.current_stream().wait_stream(stream)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool):
                    self._decode(size)
                pool = graph.pool()
                self._graphs[size] = graph

    def submit(self, plan: StepPlan) -> Ticket:
        """Begin a step; does not wait for the device unless a row is penalised."""
        rows = plan.rows
        host = self._hosts[self._turn % len(self._hosts)]
        self._turn += 1
        host.settle()
        size = next((size for size in self.buckets if len(rows) <= size), None)
        if any(len(row.tokens) > 1 for row in rows):
            size = None
        host.fill(rows, size or len(rows))
        ids, amounts = entries(host.view, [row.draw for row in rows])
        with torch.inference_mode():
            self._table[: size or len(rows)].copy_(
                host.table[: size or len(rows)], non_blocking=True
            )
            if size is None or len(ids) > BIASES:
                self._ragged(rows, ids, amounts)
            else:
                self._penalties.fill(ids, amounts)
                self._replay(size)
            wanted = any(row.draw and row.draw.settings.logprobs is not None for row in rows)
            return host.take(rows, self._results, self._details if wanted else None)

    def collect(self, ticket: Ticket) -> tuple[RowResult, ...]:
        """Wait for a step and read its results."""
        if ticket.done is not None:
            ticket.done.synchronize()
        details = None if ticket.details is None else ticket.details.numpy()
        draws = [row.draw for row in ticket.rows]
        return tuple(read_results(ticket.results.numpy(), details, draws))

    def _replay(self, size: int) -> None:
        graph = self._graphs.get(size)
        if graph is None:
            self._decode(size)
        else:
            graph.replay()

    def _decode(self, size: int) -> None:
        """A bucket's step on the static buffers."""
        batch = self._batches.batch(size)
        self._step(batch, size, self._penalties, self._listed, draws=True)

    def _ragged(self, rows: Sequence[Row], ids: Sequence[int], amounts: Sequence[float]) -> None:
        count = len(rows)
        penalties = self._penalties
        if len(ids) > BIASES:
            penalties = Penalties(len(ids), self._device)
        penalties.fill(ids, amounts)
        listed = self._listed if count <= len(self._listed) else self._lists(count)
        draws = any(row.draw is not None for row in rows)
        self._step(pack(rows, self._device), count, penalties, listed, draws=draws)

    def _step(
        self,
        batch: RaggedBatch,
        rows: int,
        penalties: Penalties,
        listed: torch.Tensor,
        *,
        draws: bool,
    ) -> None:
        table, results = self._table, self._results
        step_triton.feed_kernel[(rows,)](
            table, batch.starts, self._last, batch.tokens, batch.slots, num_warps=1
        )
        hidden = self._model.forward(self._bank, batch)
        # Without a draw no logit is read; any memory stands in.
        logits = self._model.logits(hidden) if draws else penalties.amounts
        size = {"VOCAB": self._model.vocab, "num_warps": sampling_triton.WARPS}
        few = {**size, "num_warps": _FEW_WARPS}
        exact = {"enable_fp_fusion": False}
        ids, amounts, saved = penalties.ids, penalties.amounts, penalties.saved
        if draws:
            step_triton.bias_kernel[(rows,)](logits, table, ids, amounts, saved, TILE=_FEW, **few)
        channels = hidden.shape[1]
        sampling_triton.draw_kernel[(rows,)](
            *(logits, hidden, table, batch.slots, self._last, listed, results, channels),
            C=triton.next_power_of_2(channels),
            TILE=sampling_triton.tile_of(self._model.vocab),
            LIST=sampling_triton.LIST,
            **size,
            **exact,
        )
        if draws:
            step_triton.describe_kernel[(rows,)](
                *(logits, table, results, ids, saved, self._details),
                TILE=sampling_triton.tile_of(self._model.vocab),
                FEW=_FEW,
                **size,
                **exact,
            )

    def _lists(self, rows: int) -> torch.Tensor:
        return torch.zeros(rows, self._model.vocab, dtype=torch.int32, device=self._device)


class _HostRows:
    """Host buffers of one step: the table that goes out, the results that come back."""

    def __init__(self, rows: int, *, pinned: bool) -> None:
        self.table = torch.zeros(rows, WIDTH, dtype=torch.int64, pin_memory=pinned)
        self.view: NDArray[np.int64] = self.table.numpy()
        self._results = torch.zeros(rows, 2, dtype=torch.int64, pin_memory=pinned)
        self._details = torch.zeros(rows, DETAILS, dtype=torch.int64, pin_memory=pinned)
        self._done = torch.cuda.Event() if pinned else None

    def settle(self) -> None:
        """Wait until the device has done with these buffers."""
        if self._done is not None:
            self._done.synchronize()

    def fill(self, rows: Sequence[Row], size: int) -> None:
        """Rows of a plan, then padding rows up to `size`."""
        fill(self.view, rows)
        self.view[len(rows) : size] = QUIET

    def take(
        self, rows: tuple[Row, ...], results: torch.Tensor, details: torch.Tensor | None
    ) -> Ticket:
        """Copy results behind the step, and mark on the stream where they have arrived."""
        count = len(rows)
        self._results[:count].copy_(results[:count], non_blocking=True)
        if details is not None:
            self._details[:count].copy_(details[:count], non_blocking=True)
        if self._done is not None:
            self._done.record()
        return Ticket(
            rows,
            self._results[:count],
            None if details is None else self._details[:count],
            self._done,
        )
