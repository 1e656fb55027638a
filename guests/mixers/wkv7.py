"""The oracle of RWKV-7: one actor, one token, one line of code per line of the equations.

It works in the dtype of the tensors it is given (float64 is the reference for accuracy), knows no
batch, no slot and no bank, and shares no code with the operators it judges.
Source: the equations of the RWKV-7 paper (arXiv 2503.14456), names as in the original checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.functional import layer_norm

Tensors = Mapping[str, torch.Tensor]
State = dict[str, torch.Tensor]


def empty_state(layers: int, width: int, dtype: torch.dtype, head_size: int = 64) -> State:
    """The state that has absorbed no token: wkv [L, H, D(v), D(k)], the two shifts [L, C]."""
    return {
        "wkv": torch.zeros(layers, width // head_size, head_size, head_size, dtype=dtype),
        "shift_att": torch.zeros(layers, width, dtype=dtype),
        "shift_ffn": torch.zeros(layers, width, dtype=dtype),
    }


def step(tensors: Tensors, state: State, token: int) -> torch.Tensor:
    """Absorb one token; returns the logits [V]. Modifies `state`."""
    x = _norm(tensors["emb.weight"][token], tensors, "blocks.0.ln0")
    v_first = None
    for index in range(len(state["wkv"])):
        attended, v_first = time_mix(tensors, index, x, state, v_first)
        x = x + attended
        x = x + channel_mix(tensors, index, x, state)
    return tensors["head.weight"] @ _norm(x, tensors, "ln_out")


def time_mix(
    tensors: Tensors, index: int, x: torch.Tensor, state: State, v_first: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention half of one layer; returns its output [C] and v_first [C]. Modifies `state`."""
    p = _Prefixed(tensors, f"blocks.{index}.att.")
    heads = state["wkv"].shape[1]
    h = _norm(x, tensors, f"blocks.{index}.ln1")
    d = state["shift_att"][index] - h
    x_r, x_w, x_k, x_v, x_a, x_g = (h + d * p[f"x_{name}"] for name in "rwkvag")
    state["shift_att"][index] = h

    r = p["receptance.weight"] @ x_r
    k = p["key.weight"] @ x_k
    v = p["value.weight"] @ x_v
    w = torch.exp(-(torch.e**-0.5) * torch.sigmoid(p["w0"] + torch.tanh(x_w @ p["w1"]) @ p["w2"]))
    a = torch.sigmoid(p["a0"] + (x_a @ p["a1"]) @ p["a2"])
    g = torch.sigmoid(x_g @ p["g1"]) @ p["g2"]
    if v_first is None:
        v_first = v
    else:
        v = v + (v_first - v) * torch.sigmoid(p["v0"] + (x_v @ p["v1"]) @ p["v2"])
    kk = (k * p["k_k"]).view(heads, -1)
    kk = kk / torch.linalg.vector_norm(kk, dim=1, keepdim=True).clamp_min(1e-12)
    k = k * (1 + (a - 1) * p["k_a"])

    y = torch.empty(heads, kk.shape[1], dtype=x.dtype)
    for head, (rh, wh, kh, vh, ah) in enumerate(
        zip(*(t.view(heads, -1) for t in (r, w, k, v, a)), strict=True)
    ):
        s = state["wkv"][index, head]  # [D(v), D(k)]
        s = s * wh - torch.outer(s @ kk[head], kk[head] * ah) + torch.outer(vh, kh)
        state["wkv"][index, head] = s
        y[head] = s @ rh
    size = y.shape[1]
    y = (y - y.mean(1, keepdim=True)) / torch.sqrt(
        y.var(1, keepdim=True, correction=0) + 1e-5 * size
    )
    y = y.view(-1) * p["ln_x.weight"] + p["ln_x.bias"]
    bonus = (r * k).view(heads, -1).mul(p["r_k"]).sum(1, keepdim=True) * v.view(heads, -1)
    return p["output.weight"] @ ((y + bonus.view(-1)) * g), v_first


def channel_mix(tensors: Tensors, index: int, x: torch.Tensor, state: State) -> torch.Tensor:
    """The feed-forward half of one layer, [C]. Modifies `state`."""
    p = _Prefixed(tensors, f"blocks.{index}.ffn.")
    h = _norm(x, tensors, f"blocks.{index}.ln2")
    m = h + (state["shift_ffn"][index] - h) * p["x_k"]
    state["shift_ffn"][index] = h
    return p["value.weight"] @ torch.relu(p["key.weight"] @ m) ** 2


def _norm(x: torch.Tensor, tensors: Tensors, name: str) -> torch.Tensor:
    return layer_norm(x, x.shape, tensors[name + ".weight"], tensors[name + ".bias"], 1e-5)


class _Prefixed(dict[str, torch.Tensor]):
    """Tensors of one part under their short names."""

    def __init__(self, tensors: Tensors, prefix: str) -> None:
        cut = len(prefix)
        super().__init__({k[cut:]: v for k, v in tensors.items() if k.startswith(prefix)})
