"""Steps that run on the device from the drawn token before to the drawn token after.

One graph holds all of it: the tokens that rows follow, embedding, layers, head, biases, the draw,
and what log probabilities are made of. There is one for every bucket of decode steps and one for
every size of steps with longer rows (`mixed_rows.py`). The host fills a table, starts the graph and
an event tells when the results lie in its memory; meanwhile it may submit the next plan. A plan
that goes on as the one before needs no table, since the device counts positions itself. Steps that
no graph holds launch the same kernels one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from statevisor.guests import sampling_triton, step_triton
from statevisor.guests.bank import Bank
from statevisor.guests.batch import pack
from statevisor.guests.device_results import DETAILS, read_results
from statevisor.guests.graphs import BUCKETS, PROMPTS, DecodeRows, fitting_buckets, prompt
from statevisor.guests.host_rows import HostResults, HostRows, Ticket
from statevisor.guests.mixed_rows import MixedRows, Size
from statevisor.guests.model import Model
from statevisor.guests.ops import RaggedBatch
from statevisor.guests.step_rows import QUIET, WIDTH
from statevisor.hypervisor.plan import MORE_AHEAD, RowResult, StepPlan

#: Plans on their way at once.
AHEAD = 2
#: Tables on the host: one more than are mostly on their way.
TABLES = AHEAD + 1
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

    All calls come from one thread and one stream, but for `collect`.
    """

    ahead = AHEAD

    def __init__(
        self,
        model: Model,
        bank: Bank,
        buckets: Sequence[int] = BUCKETS,
        sizes: Sequence[Size] = (),
    ) -> None:
        """sizes: of steps with longer rows, in the order in which they are tried."""
        self._model = model
        self._bank = bank
        self.buckets = fitting_buckets(bank.slots, buckets)
        self.sizes = tuple(sizes)
        self._device = device = model.ops.device
        pinned = device.type == "cuda"
        most = max(self.buckets[-1], bank.slots, *(size.rows for size in sizes), 1)
        self._batches = DecodeRows(self.buckets[-1], device)
        self._mixed = MixedRows(sizes, device, pinned=pinned)
        self._table = torch.zeros(most, WIDTH, dtype=torch.int64, device=device)
        self._last = torch.full((bank.slots + 1,), -1, dtype=torch.int64, device=device)
        self._results = torch.zeros(most, 2, dtype=torch.int64, device=device)
        self._details = torch.zeros(most, DETAILS, dtype=torch.int64, device=device)
        self._penalties = Penalties(BIASES, device)
        self._listed = self._lists(max(self.buckets[-1], *(size.rows for size in sizes), 1))
        self._tables = [HostRows(most, self._mixed.host(), pinned=pinned) for _ in range(TABLES)]
        # each is written again only when what it held has been read
        self._places = [HostResults(most, pinned=pinned) for _ in range(AHEAD + MORE_AHEAD)]
        self._graphs: dict[int | Size, torch.cuda.CUDAGraph] = {}
        self._tokens: dict[int, RowResult] = {}
        self._turn = self._filled = 0
        self._standing: HostRows | None = None  #: whose table the device has
        self._offset = 0  #: of the plan that would go on from there

    def capture(self) -> None:
        """Record a graph for every bucket and size, largest first, so that all share the largest's
        memory.

        Runs padding rows, so it modifies slot 0.
        """
        with torch.inference_mode():
            self._table[:] = torch.from_numpy(QUIET)
            for tokens in PROMPTS:
                self._model.forward(self._bank, prompt(tokens, self._device))
            pool = None
            for size in sorted((*self.buckets, *self.sizes), key=_extent, reverse=True):
                # Outside the capture first: kernels are compiled and loaded, libraries set up.
                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    self._whole(size)
                torch.cuda.current_stream().wait_stream(stream)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool):
                    self._whole(size)
                pool = graph.pool()
                self._graphs[size] = graph
                graph.replay()  # the first time it is also sent to the device

    def submit(self, plan: StepPlan) -> Ticket:
        """Begin a plan; does not wait for the device."""
        place = self._places[self._turn % len(self._places)]
        self._turn += 1
        with torch.inference_mode():
            host = self._standing
            if host is None or plan.rows is not host.rows or plan.offset != self._offset:
                host = self._sent(plan)
            self._offset = plan.offset + plan.times
            for time in range(plan.times):
                self._run(host)
                place.take(host, time, self._results, self._details)
            return place.ticket(host, plan.times)

    def _sent(self, plan: StepPlan) -> HostRows:
        """The plan's rows, on their way to the device."""
        self._standing = None  # until all is there
        host = self._tables[self._filled % len(self._tables)]
        self._filled += 1
        host.settle()
        host.fill(plan, *self._choices(plan))
        self._table[: host.count].copy_(host.table[: host.count], non_blocking=True)
        if isinstance(host.size, Size):
            self._mixed.send(host.batch, host.size)
        if len(host.ids) and host.size is not None:
            self._penalties.fill(host.ids, host.amounts)
        host.mark()
        self._standing = host
        return host

    def _choices(self, plan: StepPlan) -> tuple[Sequence[int], Sequence[Size]]:
        """Buckets and sizes that the plan may be a step of."""
        if sum(len(row.draw.bias) for row in plan.rows if row.draw is not None) > BIASES:
            return (), ()
        # What is made in chunks waits for the host in between, which no graph can hold.
        chunked = self._model.ops.chunked
        if chunked is not None and any(len(row.tokens) >= chunked for row in plan.rows):
            return self.buckets, ()
        return self.buckets, self.sizes

    def _run(self, host: HostRows) -> None:
        if host.size is None:
            self._ragged(host)
        elif host.size in self._graphs:
            self._graphs[host.size].replay()
        else:
            self._whole(host.size)

    def waits(self, ticket: Ticket) -> bool:
        """Whether the device has not yet done all of a plan."""
        return ticket.done is not None and not ticket.done.query()

    def collect(self, ticket: Ticket) -> list[tuple[RowResult, ...]]:
        """Wait for a plan and read its results."""
        if ticket.done is not None:
            ticket.done.synchronize()
        details = [None] * len(ticket.results)
        if ticket.details is not None:
            details = list(ticket.details.numpy()[:, ticket.places])
        draws = [row.draw for row in ticket.rows]
        return [
            tuple(read_results(results, described, draws, self._tokens))
            for results, described in zip(
                ticket.results.numpy()[:, ticket.places], details, strict=True
            )
        ]

    def _whole(self, size: int | Size) -> None:
        """A step of a bucket or size on the static buffers."""
        if isinstance(size, Size):
            batch, rows = self._mixed.batch(size), size.rows
        else:
            batch, rows = self._batches.batch(size), size
        self._step(batch, rows, self._penalties, self._listed, draws=True)

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


def _extent(size: int | Size) -> tuple[int, int]:
    """Rows and tokens, by which the memory of a step grows."""
    return (size.rows, size.all_tokens) if isinstance(size, Size) else (size, size)
