"""RWKV-7 (x070): the state's layout and the forward pass over the operators of `guests/ops.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from statevisor.guests.bank import TORCH_DTYPES, Bank
from statevisor.guests.families.rwkv7_weights import (
    Rwkv7Config,
    Rwkv7Layer,
    Rwkv7Weights,
    check_tensors,
    random_weights,
    shapes,
)
from statevisor.guests.ops import Ops, Product, RaggedBatch
from statevisor.hypervisor.errors import CapabilityMissing
from statevisor.hypervisor.layout import Layout, StateFamily

if TYPE_CHECKING:
    from statevisor.guests.families.rwkv7_fused import FusedRwkv7

__all__ = [
    "Rwkv7Config",
    "Rwkv7Layer",
    "Rwkv7Model",
    "Rwkv7Weights",
    "check_tensors",
    "forward",
    "layout",
    "logits",
    "random_weights",
    "shapes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rwkv7Model:
    """Weights and the operators to run them: what a runner needs of a family."""

    ops: Ops
    weights: Rwkv7Weights
    layout: Layout
    family: str = "rwkv7"
    fused: FusedRwkv7 | None = None  #: the pass in few kernels, where the operators have it

    @classmethod
    def build(
        cls,
        config: Rwkv7Config,
        tensors: Mapping[str, torch.Tensor],
        ops: Ops,
        state_dtype: str,
        digest: str | None = None,
    ) -> Rwkv7Model:
        """Place canonical tensors on the operators' device; digest: see `from_tensors`.

        Raises: CheckpointInvalid, CapabilityMissing (the state dtype).
        """
        weights = Rwkv7Weights.from_tensors(config, tensors, ops.device, ops.act, digest)
        fused = _fused(ops, weights) if ops.fuses else None
        return cls(
            ops=ops,
            layout=layout(config, state_dtype, ops.act),
            weights=weights if fused is None else fused.weights,
            fused=fused,
        )

    @property
    def vocab(self) -> int:
        return self.weights.config.vocab

    @property
    def digest(self) -> str:
        """Of the tensors as loaded."""
        return self.weights.digest

    def matrices(self) -> tuple[torch.Tensor, ...]:
        """Every weight that goes into a linear."""
        return self.weights.matrices()

    def forward(self, bank: Bank, batch: RaggedBatch) -> torch.Tensor:
        """Feed the batch; returns each row's last hidden [R, C]. Modifies the batch's slots."""
        chunked = self.ops.chunked is not None and batch.longest >= self.ops.chunked
        if self.fused is not None and not chunked:
            return self.fused.forward(bank, batch)
        return forward(self.ops, self.weights, bank, batch)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, V] float32 of hidden rows [R, C]."""
        if self.fused is not None:
            return self.fused.logits(hidden)
        return logits(self.ops, self.weights, hidden)


def _fused(ops: Ops, weights: Rwkv7Weights) -> FusedRwkv7:
    # Imported here: without a driver the kernels' compiler warns of its absence.
    from statevisor.guests.families.rwkv7_fused import FusedRwkv7

    return FusedRwkv7(ops, weights)


def layout(config: Rwkv7Config, state_dtype: str, act: torch.dtype) -> Layout:
    """Row layout: wkv in `state_dtype` ("F32" or "F16"), the two shifts in the compute dtype."""
    if state_dtype not in ("F32", "F16"):
        raise CapabilityMissing(f"a wkv state is kept as F32 or F16, not as {state_dtype}")
    shift_dtype = next(name for name, dtype in TORCH_DTYPES.items() if dtype == act)
    square = (config.layers, config.heads, config.head_size, config.head_size)
    channels = (config.layers, config.width)
    return Layout(
        families=(
            StateFamily(name="wkv", shape=square, dtype=state_dtype),
            StateFamily(name="shift_att", shape=channels, dtype=shift_dtype),
            StateFamily(name="shift_ffn", shape=channels, dtype=shift_dtype),
        )
    )


def forward(ops: Ops, weights: Rwkv7Weights, bank: Bank, batch: RaggedBatch) -> torch.Tensor:
    """Feed the batch; returns the normed last hidden of each row [R, C]. Modifies its slots."""
    x = weights.embedding[batch.tokens]
    v_first = None
    states = zip(*(bank.layers(name) for name in ("wkv", "shift_att", "shift_ffn")), strict=True)
    for layer, (wkv, shift_att, shift_ffn) in zip(weights.layers, states, strict=True):
        attended, v_first = _time_mix(ops, weights.config, layer, x, v_first, wkv, shift_att, batch)
        x = x + attended
        x = x + _channel_mix(ops, weights.config, layer, x, shift_ffn, batch)
    if batch.longest > 1:
        x = x[batch.lasts]
    return ops.layer_norm(x, weights.ln_out_weight, weights.ln_out_bias, weights.config.norm_eps)


def logits(ops: Ops, weights: Rwkv7Weights, hidden: torch.Tensor) -> torch.Tensor:
    """Logits [R, V] float32 of normed hidden rows [R, C]."""
    return ops.linear(hidden, weights.head).float()


def _time_mix(
    ops: Ops,
    config: Rwkv7Config,
    layer: Rwkv7Layer,
    x: torch.Tensor,
    v_first: torch.Tensor | None,
    wkv: torch.Tensor,
    shift: torch.Tensor,
    batch: RaggedBatch,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention half: its output [N, C] and v_first [N, C]. Modifies `wkv` and `shift`."""
    x_r, x_w, x_k, x_v, x_a, x_g = ops.shift_mix(
        x, layer.ln1_weight, layer.ln1_bias, config.norm_eps, layer.mixes, shift, batch
    ).unbind(0)
    downs: list[Product] = [
        (x_r, layer.receptance, None),
        (x_k, layer.key, None),
        (x_v, layer.value, None),
        (x_w, layer.w1, "tanh"),
        (x_a, layer.a1, None),
        (x_g, layer.g1, "sigmoid"),
    ]
    if layer.v1 is not None:
        downs.append((x_v, layer.v1, None))
    r, k, v, *inner = ops.linears(downs)
    ups = (layer.w2, layer.a2, layer.g2, layer.v2)[: len(inner)]
    w, a, g, *gate = ops.linears([(x, up, None) for x, up in zip(inner, ups, strict=True)])
    v_gate = gate[0] if gate else None
    if v_first is None:
        v_first = v
    r = r.view(len(r), config.heads, config.head_size)
    decay, k, v, kk, a = ops.wkv7_inputs(
        w,
        k,
        v,
        a,
        v_gate,
        None if v_gate is None else v_first,
        layer.w0,
        layer.a0,
        layer.v0,
        layer.k_k,
        layer.k_a,
        config.heads,
    )
    y = ops.wkv7(r, decay, k, v, kk, a, wkv, batch)
    mixed = ops.wkv7_output(
        y, r, k, v, g, layer.ln_x_weight, layer.ln_x_bias, layer.r_k, config.group_norm_eps
    )
    return ops.linear(mixed, layer.output), v_first


def _channel_mix(
    ops: Ops,
    config: Rwkv7Config,
    layer: Rwkv7Layer,
    x: torch.Tensor,
    shift: torch.Tensor,
    batch: RaggedBatch,
) -> torch.Tensor:
    """The feed-forward half: its output [N, C]. Modifies `shift`."""
    mixed = ops.shift_mix(
        x, layer.ln2_weight, layer.ln2_bias, config.norm_eps, layer.ffn_mix, shift, batch
    )[0]
    return ops.linear(ops.linear(mixed, layer.ffn_key, "relu2"), layer.ffn_value)
