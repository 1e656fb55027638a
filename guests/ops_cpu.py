"""The operators in torch on the CPU, in float32, with bits that depend on their own row only.

How the contract is kept:
- `linear`: the library picks its kernel by shape, so every product has one of a few row counts:
  16, and those that `admit` showed to give the same bits for that weight. Rows are padded up.
- Elementwise work uses only functions whose vector body and scalar tail agree. `torch.sigmoid` is
  not among them (one over one plus exp is); `guests/invariance.py` checks the whole at start.
- Sums run over the channels of one row or one head, never over a range that N or R decides.
- The recurrence runs on one row and one token at a time, on operands of one fixed shape and one
  alignment, straight in the bank.

All operators run under `torch.inference_mode`, which the caller enters.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from statevisor.guests.bank import ALIGNMENT
from statevisor.guests.ops import Activation, Product, RaggedBatch

#: The row count that defines the bits of a linear.
BLOCK = 16
#: Row counts that may replace it for speed, once shown to give the same bits.
OTHER_BLOCKS = (256, 64, 4)

# Tensors, since the framework takes longer over a Python number than over a row.
_ONE = torch.tensor(1.0)
_DECAY_SCALE = torch.tensor(-(math.e**-0.5))


class CpuOps:
    """`Ops` on the CPU. Holds scratch memory: one thread at a time."""

    device = torch.device("cpu")
    act = torch.float32
    fuses = False
    exact = True
    chunked = None

    def __init__(self, threads: int | None = None) -> None:
        """threads: of torch for the whole process; None leaves them as they are."""
        if threads is not None:
            torch.set_num_threads(threads)
        self.blocks: dict[torch.Size, tuple[int, ...]] = {}
        self._scratch: dict[tuple[int, int], torch.Tensor] = {}

    def fingerprint(self) -> Mapping[str, str]:
        return {
            "backend": "cpu",
            "torch": torch.__version__,
            "threads": str(torch.get_num_threads()),
            "machine": platform.machine(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "libraries": torch.__config__.show(),
            "block": str(BLOCK),
        }

    def admit(self, weights: Iterable[torch.Tensor]) -> None:
        """Allow other row counts, shape by shape, where they show the bits of the defining one.

        One weight stands for all of its shape: shape and alignment are all the library looks at.
        """
        for weight in weights:
            if weight.shape not in self.blocks:
                self.blocks[weight.shape] = tuple(_equal_blocks(weight))

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, activation: Activation | None = None
    ) -> torch.Tensor:
        count = x.shape[0]
        others = self.blocks.get(weight.shape, ())
        if count <= BLOCK:
            size = 4 if count <= 4 and 4 in others else BLOCK
            out = torch.mm(self._padded(x, count, size), weight.t())
            return activate(out if size == count else out[:count], activation)
        x = x if _is_aligned(x) else x.clone(memory_format=torch.contiguous_format)
        out = torch.empty(-(-count // BLOCK) * BLOCK, weight.shape[0])
        for start, size in _cut(count, others):
            rows = x[start : start + size]
            rows = self._padded(rows, rows.shape[0], size)
            torch.mm(rows, weight.t(), out=out[start : start + size])
        return activate(out[:count], activation)

    def linears(self, products: Sequence[Product]) -> list[torch.Tensor]:
        return [self.linear(*product) for product in products]

    def layer_norm(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
    ) -> torch.Tensor:
        return torch.layer_norm(x, x.shape[1:], weight, bias, eps)

    def shift_mix(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        eps: float,
        mixes: torch.Tensor,
        shift: torch.Tensor,
        batch: RaggedBatch,
    ) -> torch.Tensor:
        h = self.layer_norm(x, weight, bias, eps)
        carried = shift.index_select(0, batch.slots)
        if batch.longest == 1:
            previous, latest = carried, h
        else:
            previous = torch.empty_like(h)
            previous[1:] = h[:-1]
            previous.index_copy_(0, batch.starts[:-1], carried)
            latest = h.index_select(0, batch.lasts)
        shift.index_copy_(0, batch.slots, latest)
        # Multiply, then add: a fused multiply-add may differ between vector body and tail.
        return torch.mul(previous.sub_(h), mixes.unsqueeze(1)).add_(h)

    def wkv7_inputs(
        self,
        w: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        a: torch.Tensor,
        v_gate: torch.Tensor | None,
        v_first: torch.Tensor | None,
        w0: torch.Tensor,
        a0: torch.Tensor,
        v0: torch.Tensor | None,
        k_k: torch.Tensor,
        k_a: torch.Tensor,
        heads: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        shape = (k.shape[0], heads, -1)
        decay = _sigmoid(w + w0).mul_(_DECAY_SCALE).exp_()
        a = _sigmoid(a + a0)
        if v_first is not None:
            assert v_gate is not None
            assert v0 is not None
            v = _sigmoid(v_gate + v0).mul_(v_first - v).add_(v)
        kk = (k * k_k).view(shape)
        norm = kk.square().sum(2, keepdim=True).sqrt_().clamp_min_(1e-12)
        scaled = (a - _ONE).mul_(k_a).add_(_ONE).mul_(k)
        return (
            decay.view(shape),
            scaled.view(shape),
            v.view(shape),
            kk.div_(norm),
            a.view(shape),
        )

    def wkv7(
        self,
        r: torch.Tensor,
        decay: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        kk: torch.Tensor,
        a: torch.Tensor,
        state: torch.Tensor,
        batch: RaggedBatch,
    ) -> torch.Tensor:
        # y = S' r is taken from S, the state before the token, so that one pass over S serves both
        # products: S' r = S (w r) - (S kk)((kk a) . r) + v (k . r).
        r = r.view(k.shape)
        asked = k.new_empty(*k.shape[:2], 2, k.shape[2])  # [N, H, 2, D]: kk, w r
        asked[:, :, 0] = kk
        torch.mul(decay, r, out=asked[:, :, 1])
        erase = (kk * a).neg_()
        read = torch.empty_like(asked)  # [N, H, 2, D]: S kk, S (w r)
        _recur(asked, read, decay, erase, v, k, state, batch)
        y = read[:, :, 0] * (erase * r).sum(2, keepdim=True)
        y += read[:, :, 1]
        return y.add_(v * (k * r).sum(2, keepdim=True))

    def wkv7_output(
        self,
        y: torch.Tensor,
        r: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        r_k: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        bonus = (r.view(k.shape) * k).mul_(r_k).sum(2, keepdim=True) * v
        out = torch.layer_norm(y, y.shape[2:], None, None, eps).view(g.shape)
        return out.mul_(weight).add_(bias).add_(bonus.view(g.shape)).mul_(g)

    def _padded(self, rows: torch.Tensor, count: int, size: int) -> torch.Tensor:
        """The rows themselves, or scratch that begins with them; what follows is of no account."""
        if count == size and _is_aligned(rows):
            return rows
        key = (size, rows.shape[1])
        scratch = self._scratch.get(key)
        if scratch is None:
            scratch = self._scratch[key] = torch.zeros(key)
        scratch[:count] = rows
        return scratch


def _recur(
    asked: torch.Tensor,
    read: torch.Tensor,
    decay: torch.Tensor,
    erase: torch.Tensor,
    v: torch.Tensor,
    k: torch.Tensor,
    state: torch.Tensor,
    batch: RaggedBatch,
) -> None:
    """Step every row's state through its tokens; fills `read` with S kk and S (w r)."""
    operands = (
        asked,
        read,
        decay.unsqueeze(2),
        read[:, :, 0].unsqueeze(3),
        erase.unsqueeze(2),
        v.unsqueeze(3),
        k.unsqueeze(2),
    )
    tokens = list(zip(*map(_each, operands), strict=True))
    starts = batch.starts.tolist()
    for row, slot in enumerate(batch.slots.tolist()):
        stored = state[slot]
        half = stored.dtype != torch.float32
        s = stored.float() if half else stored  # [H, D(v), D(k)]
        s_t = s.mT
        for ask, got, w, sa, e, value, key in tokens[starts[row] : starts[row + 1]]:
            torch.bmm(ask, s_t, out=got)
            s.mul_(w).addcmul_(sa, e).addcmul_(value, key)
            if half:
                s.copy_(stored.copy_(s))


def _each(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.unbind(0) if x.shape[0] > 1 else (x[0],)


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    """In place."""
    return x.neg_().exp_().add_(_ONE).reciprocal_()


def activate(x: torch.Tensor, activation: Activation | None) -> torch.Tensor:
    """In place."""
    match activation:
        case None:
            return x
        case "tanh":
            return x.tanh_()
        case "sigmoid":
            return _sigmoid(x)
        case "relu2":
            return x.relu_().square_()


def _is_aligned(x: torch.Tensor) -> bool:
    return x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0


def _equal_blocks(weight: torch.Tensor) -> Iterator[int]:
    rows = torch.randn(256, weight.shape[1], generator=torch.Generator().manual_seed(1))
    expected = torch.cat([part @ weight.T for part in rows.split(BLOCK)])
    for size in OTHER_BLOCKS:
        if torch.equal(torch.cat([part @ weight.T for part in rows.split(size)]), expected):
            yield size


def _cut(count: int, others: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Where blocks start and how many rows they have; the last may reach past `count`.

    Every block starts at a multiple of 16 rows, so that all are aligned alike.
    """
    start = 0
    while start < count:
        left = count - start
        size = next((s for s in others if s > BLOCK and s <= left), BLOCK)
        size = next((s for s in others if s < BLOCK and s >= left), size)
        yield start, size
        start += size
