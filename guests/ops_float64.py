"""The operators by their formulas in float64, one token at a time: what tests compare with.

Nothing here is fast and nothing is shared with a backend, so a fault in a kernel is not repeated.
Results are float64 and unrounded; only a 16-bit state is rounded as it is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from statevisor.guests.ops import Activation, Product, RaggedBatch


class Float64Ops:
    """`Ops` in float64 on any device."""

    act = torch.float64
    fuses = False
    exact = True
    chunked = None

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")

    def fingerprint(self) -> Mapping[str, str]:
        """It is nobody's build."""
        return {"backend": "float64"}

    def admit(self, weights: Iterable[torch.Tensor]) -> None:
        """Nothing to do."""

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, activation: Activation | None = None
    ) -> torch.Tensor:
        """act(x @ weight^T)."""
        product = x.double() @ weight.double().T
        match activation:
            case "tanh":
                return product.tanh()
            case "sigmoid":
                return product.sigmoid()
            case "relu2":
                return product.clamp(min=0).square()
            case None:
                return product

    def linears(self, products: Sequence[Product]) -> list[torch.Tensor]:
        """Several linears, one by one."""
        return [self.linear(*product) for product in products]

    def layer_norm(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Layer norm over the last axis."""
        x = x.double()
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return centred / (variance + eps).sqrt() * weight.double() + bias.double()

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
        """h + (h_prev - h) mixes[m]; modifies shift, h unrounded until it is stored there."""
        h = self.layer_norm(x, weight, bias, eps)
        before = torch.empty_like(h)
        for slot, begin, end in _rows(batch):
            before[begin:end] = torch.cat([shift[slot].double()[None], h[begin : end - 1]])
            shift[slot] = h[end - 1].to(shift.dtype)
        return h[None] + (before - h)[None] * mixes.double()[:, None, :]

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
        """decay, k, v, kk, a, each [N, H, D]."""
        shape = (k.shape[0], heads, -1)
        w, k, v, a = w.double(), k.double(), v.double(), a.double()
        decay = (-torch.tensor(-0.5).double().exp() * (w0.double() + w).sigmoid()).exp()
        gate = (a0.double() + a).sigmoid()
        kk = (k * k_k.double()).view(shape)
        kk = kk / kk.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12)
        k = k * (1 + (gate - 1) * k_a.double())
        if v_first is not None and v_gate is not None and v0 is not None:
            first = v_first.double().view_as(v)
            v = v + (first - v) * (v0.double() + v_gate.double()).sigmoid()
        return decay.view(shape), k.view(shape), v.view(shape), kk, gate.view(shape)

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
        """y [N, H, D]; modifies state, which is rounded to its dtype after every token."""
        r, decay, k, v, kk, a = (part.double() for part in (r, decay, k, v, kk, a))
        y = torch.empty_like(r)
        for slot, begin, end in _rows(batch):
            for t in range(begin, end):
                s = state[slot].double()
                removed = torch.einsum("hvk,hk->hv", s, kk[t])
                s = s * decay[t][:, None, :] - removed[:, :, None] * (kk[t] * a[t])[:, None, :]
                s = s + v[t][:, :, None] * k[t][:, None, :]
                y[t] = torch.einsum("hvk,hk->hv", s, r[t])
                state[slot] = s.to(state.dtype)
        return y

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
        """(GroupNorm_H(y) + (sum_head r k r_k) v) g -> [N, C]."""
        y, v = y.double(), v.double()
        one = torch.ones((), dtype=torch.float64, device=y.device)
        normed = self.layer_norm(y, one, one - 1, eps).flatten(1)
        bonus = (r.double() * k.double() * r_k.double()).sum(-1, keepdim=True) * v
        return (normed * weight.double() + bias.double() + bonus.flatten(1)) * g.double()


def _rows(batch: RaggedBatch) -> list[tuple[int, int, int]]:
    """(slot, first token, end) of every row that has tokens."""
    starts = batch.starts.tolist()
    spans = zip(batch.slots.tolist(), starts, starts[1:], strict=False)
    return [span for span in spans if span[1] < span[2]]
