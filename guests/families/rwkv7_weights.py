"""Geometry and weights of RWKV-7 (x070).

Canonical tensor names are those of the original checkpoints (`blocks.0.att.receptance.weight`,
`emb.weight`, ...), squeezed: x_* and w0 are [C], w1 [C, D], w2 [D, C], r_k [H, 64]. The matrices
keep their (out, in) order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch.nn import functional

from statevisor.guests.digest import tensors_digest
from statevisor.hypervisor.errors import CheckpointInvalid

#: Order of the token-shift mixes of the attention half in `Rwkv7Layer.mixes`.
MIXES = ("r", "w", "k", "v", "a", "g")

_SQUARES = ("receptance", "key", "value", "output")
_LORAS = ("w1", "w2", "a1", "a2", "v1", "v2", "g1", "g2")
_LINEARS = (*_SQUARES, *_LORAS, "ffn_key", "ffn_value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rwkv7Config:
    """Geometry of one RWKV-7 checkpoint."""

    layers: int
    width: int  #: C, channels
    heads: int
    ffn: int  #: width of the feed-forward half
    rank_w: int  #: inner width of the decay LoRA
    rank_a: int
    rank_v: int
    rank_g: int
    vocab: int
    head_size: int = 64
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.heads * self.head_size != self.width:
            raise CheckpointInvalid(
                f"width {self.width} is not {self.heads} heads of {self.head_size}"
            )

    @property
    def group_norm_eps(self) -> float:
        """Of the norm over each head's output; the trained constant is 64 x 1e-5."""
        return 1e-5 * self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Rwkv7Layer:
    """Weights of one layer. Matrices [out, in] in the compute dtype, vectors in float32."""

    ln1_weight: torch.Tensor  #: [C]
    ln1_bias: torch.Tensor
    mixes: torch.Tensor  #: [6, C] in the order of `MIXES`
    receptance: torch.Tensor  #: [C, C]
    key: torch.Tensor
    value: torch.Tensor
    output: torch.Tensor
    w0: torch.Tensor  #: [C]
    w1: torch.Tensor  #: [rank_w, C], the transpose of the checkpoint's, as all downs
    w2: torch.Tensor  #: [C, rank_w], the transpose of the checkpoint's, as all ups
    a0: torch.Tensor
    a1: torch.Tensor
    a2: torch.Tensor
    v0: torch.Tensor | None  #: None in layer 0, which has no value residual
    v1: torch.Tensor | None
    v2: torch.Tensor | None
    g1: torch.Tensor
    g2: torch.Tensor
    k_k: torch.Tensor  #: [C]
    k_a: torch.Tensor
    r_k: torch.Tensor  #: [H, D]
    ln_x_weight: torch.Tensor
    ln_x_bias: torch.Tensor
    ln2_weight: torch.Tensor
    ln2_bias: torch.Tensor
    ffn_mix: torch.Tensor  #: [1, C]
    ffn_key: torch.Tensor  #: [F, C]
    ffn_value: torch.Tensor  #: [C, F]

    def matrices(self) -> tuple[torch.Tensor, ...]:
        """Every weight of this layer that goes into a linear."""
        return tuple(getattr(self, name) for name in _LINEARS if getattr(self, name) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rwkv7Weights:
    """All weights of one guest on its device."""

    config: Rwkv7Config
    digest: str  #: of the tensors as loaded, before any cast
    embedding: torch.Tensor  #: [V, C], the first layer norm (ln0) folded in
    layers: tuple[Rwkv7Layer, ...]
    ln_out_weight: torch.Tensor
    ln_out_bias: torch.Tensor
    head: torch.Tensor  #: [V, C]

    def matrices(self) -> tuple[torch.Tensor, ...]:
        """Every weight that goes into a linear."""
        return (*(matrix for layer in self.layers for matrix in layer.matrices()), self.head)

    @classmethod
    def from_tensors(
        cls,
        config: Rwkv7Config,
        tensors: Mapping[str, torch.Tensor],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        digest: str | None = None,
    ) -> Rwkv7Weights:
        """Check, cast and place canonical tensors.

        digest: instead of theirs, where another fact says which they are.
        Raises: CheckpointInvalid (a tensor is missing or has another shape than the geometry says).
        """
        check_tensors(config, tensors)
        place = _Placement(tensors, torch.device(device), dtype)
        folded = functional.layer_norm(
            tensors["emb.weight"].float(),
            (config.width,),
            tensors["blocks.0.ln0.weight"].float(),
            tensors["blocks.0.ln0.bias"].float(),
            config.norm_eps,
        )
        return cls(
            config=config,
            digest=tensors_digest(tensors) if digest is None else digest,
            embedding=folded.to(place.device, dtype),
            layers=tuple(_layer(place, index) for index in range(config.layers)),
            ln_out_weight=place.vector("ln_out.weight"),
            ln_out_bias=place.vector("ln_out.bias"),
            head=place.matrix("head.weight"),
        )


def shapes(config: Rwkv7Config) -> dict[str, tuple[int, ...]]:
    """Canonical names and shapes of all tensors that a checkpoint of this geometry must have."""
    c, f, v = config.width, config.ffn, config.vocab
    vector, square = (c,), (c, c)
    found: dict[str, tuple[int, ...]] = {
        "emb.weight": (v, c),
        "head.weight": (v, c),
        "blocks.0.ln0.weight": vector,
        "blocks.0.ln0.bias": vector,
        "ln_out.weight": vector,
        "ln_out.bias": vector,
    }
    for index in range(config.layers):
        block = f"blocks.{index}."
        att = block + "att."
        for norm in (block + "ln1", block + "ln2", att + "ln_x"):
            found[norm + ".weight"] = found[norm + ".bias"] = vector
        for name in (*(f"x_{mix}" for mix in MIXES), "w0", "a0", "k_k", "k_a"):
            found[att + name] = vector
        found[att + "r_k"] = (config.heads, config.head_size)
        for name in _SQUARES:
            found[f"{att}{name}.weight"] = square
        ranks = {"w": config.rank_w, "a": config.rank_a, "g": config.rank_g}
        if index > 0:
            ranks["v"] = config.rank_v
            found[att + "v0"] = vector
        for name, rank in ranks.items():
            found[f"{att}{name}1"] = (c, rank)
            found[f"{att}{name}2"] = (rank, c)
        found[block + "ffn.x_k"] = vector
        found[block + "ffn.key.weight"] = (f, c)
        found[block + "ffn.value.weight"] = (c, f)
    return found


def check_tensors(config: Rwkv7Config, tensors: Mapping[str, torch.Tensor]) -> None:
    """Compare names and shapes with the geometry; more tensors than needed are no fault.

    Raises: CheckpointInvalid.
    """
    for name, shape in shapes(config).items():
        if name not in tensors:
            raise CheckpointInvalid(f"the checkpoint has no tensor {name}")
        if tuple(tensors[name].shape) != shape:
            raise CheckpointInvalid(
                f"tensor {name} is {list(tensors[name].shape)}, the geometry says {list(shape)}"
            )


def random_weights(config: Rwkv7Config, seed: int) -> dict[str, torch.Tensor]:
    """Canonical float32 tensors drawn so that states stay finite and every part matters.

    Scales follow the initial values of the original training code where it draws none of these
    at zero: a tensor of zeros would hide a fault in what it multiplies.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = {"w0": -2.0, "a0": -0.2, "v0": 0.7, "k_k": 0.8, "k_a": 1.0, "r_k": 0.0}
    tensors = {}
    for name, shape in shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        last = name.rsplit(".", 1)[-1]
        if last.startswith("x_"):
            tensors[name] = torch.rand(shape, generator=generator)
        elif last in centres:
            tensors[name] = centres[last] + 0.3 * noise
        elif ".ln" in name or name.startswith("ln_out"):
            tensors[name] = (1.0 if last == "weight" else 0.0) + 0.1 * noise
        elif last[-1] in "12":
            tensors[name] = noise / math.sqrt(shape[0])
        else:
            tensors[name] = noise / math.sqrt(shape[-1])
    return tensors


@dataclass(frozen=True, slots=True)
class _Placement:
    """Where tensors go: matrices are cast, vectors stay in float32."""

    tensors: Mapping[str, torch.Tensor]
    device: torch.device
    dtype: torch.dtype

    def matrix(self, name: str) -> torch.Tensor:
        return self.tensors[name].to(self.device, self.dtype).contiguous()

    def transposed(self, name: str) -> torch.Tensor:
        return self.tensors[name].T.to(self.device, self.dtype).contiguous()

    def vector(self, name: str) -> torch.Tensor:
        return self.tensors[name].to(self.device, torch.float32).contiguous()


def _layer(place: _Placement, index: int) -> Rwkv7Layer:
    block = f"blocks.{index}."
    att = block + "att."
    parts: dict[str, torch.Tensor | None] = {
        "mixes": torch.stack([place.vector(f"{att}x_{mix}") for mix in MIXES]),
        "ffn_mix": place.vector(block + "ffn.x_k")[None],
        "ffn_key": place.matrix(block + "ffn.key.weight"),
        "ffn_value": place.matrix(block + "ffn.value.weight"),
    }
    for norm, prefix in (("ln1", block), ("ln2", block), ("ln_x", att)):
        parts[norm + "_weight"] = place.vector(f"{prefix}{norm}.weight")
        parts[norm + "_bias"] = place.vector(f"{prefix}{norm}.bias")
    for name in _SQUARES:
        parts[name] = place.matrix(f"{att}{name}.weight")
    for name in ("w0", "a0", "v0", "k_k", "k_a", "r_k"):
        parts[name] = place.vector(att + name) if index > 0 or name != "v0" else None
    for name in _LORAS:
        parts[name] = place.transposed(att + name) if index > 0 or name[0] != "v" else None
    assert parts.keys() == {field.name for field in fields(Rwkv7Layer)}
    return Rwkv7Layer(**parts)  # type: ignore[arg-type]
