"""Steps that run on the device from the drawn token before to the drawn token after.

One graph per bucket holds all of it: the tokens that rows follow, embedding, layers, head, biases,
the draw, and what log probabilities are made of. The host fills one table, starts the graph and an
event tells when the results lie in its memory; meanwhile it may submit the next plan. A plan of
several times starts the graph as often. Steps with a row of several tokens launch the same kernels
one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from statevisor.guests import sampling_triton, step_triton
from statevisor.guests.bank import Bank
from statevisor.guests.batch import pack
from statevisor.guests.device_results import DETAILS, read_results
from statevisor.guests.graphs import BUCKETS, PROMPTS, DecodeRows, fitting_buckets, prompt
from statevisor.guests.host_rows import HostRows, Ticket
from statevisor.guests.model import Model
from statevisor.guests.ops import RaggedBatch
from statevisor.guests.step_rows import QUIET, WIDTH
from statevisor.hypervisor.plan import RowResult, StepPlan

#: Plans on their way at most, and host buffers: one more, for the plan that is being read.
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

    def fill(self, ids: torch.Tensor, amounts: torch.Tensor) -> None:
        """Put these in front."""
        self.ids[: len(ids)].copy_(ids, non_blocking=True)
        self.amounts[: len(ids)].copy_(amounts, non_blocking=True)


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
        self._hosts = [HostRows(most, pinned=device.type == "cuda") for _ in range(AHEAD + 1)]
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._tokens: dict[int, RowResult] = {}
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
        """Begin a plan; does not wait for the device."""
        host = self._hosts[self._turn % len(self._hosts)]
        self._turn += 1
        host.settle()
        host.fill(plan, self.buckets)
        with torch.inference_mode():
            self._table[: host.size].copy_(host.table[: host.size], non_blocking=True)
            alone = host.alone or len(host.ids) > BIASES
            if not alone:
                self._penalties.fill(host.ids, host.amounts)
            for time in range(plan.times):
                if alone:
                    self._ragged(host)
                else:
                    self._replay(host.size)
                host.take(time, self._results, self._details)
            return host.ticket(plan.times)

    def waits(self, ticket: Ticket) -> bool:
        """Whether the device has not yet done all of a plan."""
        return ticket.done is not None and not ticket.done.query()

    def collect(self, ticket: Ticket) -> list[tuple[RowResult, ...]]:
        """Wait for a plan and read its results."""
        if ticket.done is not None:
            ticket.done.synchronize()
        details = [None] * len(ticket.results)
        if ticket.details is not None:
            details = list(ticket.details.numpy())
        draws = [row.draw for row in ticket.rows]
        return [
            tuple(read_results(results, described, draws, self._tokens))
            for results, described in zip(ticket.results.numpy(), details, strict=True)
        ]

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

    def _ragged(self, host: HostRows) -> None:
        """A step of any rows, its kernels launched one by one."""
        count = len(host.rows)
        penalties = self._penalties
        if len(host.ids) > BIASES:
            penalties = Penalties(len(host.ids), self._device)
        penalties.fill(host.ids, host.amounts)
        listed = self._listed if count <= len(self._listed) else self._lists(count)
        batch = pack(host.rows, self._device)
        self._step(batch, count, penalties, listed, draws=host.draws)

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
        vocab, channels = self._model.vocab, hidden.shape[1]
        shape = sampling_triton.shape_of(vocab)
        size = {"VOCAB": vocab, "TILE": shape.tile, "num_warps": shape.warps}
        size["enable_fp_fusion"] = False
        ids, amounts, saved = penalties.ids, penalties.amounts, penalties.saved
        if draws:
            step_triton.bias_kernel[(rows,)](
                logits, table, ids, amounts, saved, VOCAB=vocab, TILE=_FEW, num_warps=_FEW_WARPS
            )
        sampling_triton.draw_kernel[(rows,)](
            *(logits, hidden, table, batch.slots, self._last, listed, results, channels),
            C=1 << (channels - 1).bit_length(),
            LIST=sampling_triton.LIST,
            **size,
        )
        if draws:
            step_triton.describe_kernel[(rows,)](
                *(logits, table, results, ids, saved, self._details),
                FEW=_FEW,
                **size,
            )

    def _lists(self, rows: int) -> torch.Tensor:
        return torch.zeros(rows, self._model.vocab, dtype=torch.int32, device=self._device)
