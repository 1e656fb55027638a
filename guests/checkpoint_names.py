"""RWKV-7 tensor names and shapes of the two checkpoint forms, to and from the canonical ones.

*native* is the form of the original .pth files, with vectors as [1, 1, C]; *fla* that of
flash-linear-attention and its Hugging Face folders, with the low-rank matrices as (out, in).
Canonical names and shapes are those of `families/rwkv7_weights.py`. Source of the fla names: the
parameters of its RWKV7ForCausalLM 0.6.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

from torch import Tensor

from statevisor.guests.families.rwkv7_weights import MIXES

_FLA_TOPS = {
    "emb.weight": "model.embeddings.weight",
    "head.weight": "lm_head.weight",
    "ln_out.weight": "model.norm.weight",
    "ln_out.bias": "model.norm.bias",
}
_FLA_PARTS = {
    "ln0": "pre_norm",
    "ln1": "attn_norm",
    "ln2": "ffn_norm",
    "att.receptance": "attn.r_proj",
    "att.key": "attn.k_proj",
    "att.value": "attn.v_proj",
    "att.output": "attn.o_proj",
    "att.ln_x": "attn.g_norm",
}
_FLA_RANKS = {"0": "2.bias", "1": "0.weight", "2": "2.weight"}

_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
_LOW_RANK = re.compile(r"att\.([wavg])([012])\Z")
_LAYER = re.compile(r"(?:blocks|model\.layers)\.(\d+)\.")
_MIX_VECTORS = frozenset(f"att.x_{mix}" for mix in MIXES)
_NATIVE_VECTORS = _MIX_VECTORS | {"att.w0", "att.a0", "att.v0", "att.k_k", "att.k_a", "ffn.x_k"}
_MATRICES = frozenset({"emb.weight", "head.weight"})
_PROJECTION = re.compile(r"(att\.(receptance|key|value|output)|ffn\.(key|value))\.weight\Z")


class Form(StrEnum):
    """How a checkpoint names and lays out its tensors."""

    NATIVE = "native"
    FLA = "fla"


def form_of(names: Iterable[str]) -> Form | None:
    """The form of a checkpoint by the names of its layers; None if they are of neither."""
    for name in names:
        match = _LAYER.match(name)
        if match:
            return Form.FLA if name.startswith("model.") else Form.NATIVE
    return None


def layers_of(names: Iterable[str]) -> int:
    """One more than the highest layer that is named."""
    matches = map(_LAYER.match, names)
    return 1 + max((int(match[1]) for match in matches if match), default=-1)


def stored_name(canonical: str, form: Form) -> str:
    """What a form calls a tensor."""
    if form is Form.NATIVE:
        return canonical
    if canonical in _FLA_TOPS:
        return _FLA_TOPS[canonical]
    layer, part = _split(canonical)
    low_rank = _LOW_RANK.match(part)
    if low_rank:
        part = f"attn.{low_rank[1]}_lora.lora.{_FLA_RANKS[low_rank[2]]}"
    else:
        owner, _, last = part.rpartition(".")
        part = f"{_FLA_PARTS.get(owner, owner.replace('att', 'attn'))}.{last}"
    return f"model.layers.{layer}.{part}"


def to_canonical(canonical: str, tensor: Tensor, form: Form) -> Tensor:
    """A stored tensor in its canonical shape, as far as its own shape allows."""
    if form is Form.FLA and _is_low_rank_matrix(canonical) and tensor.ndim == 2:
        return tensor.T.contiguous()
    wanted = _canonical_rank(canonical)
    while tensor.ndim > wanted and tensor.shape[0] == 1:
        tensor = tensor[0]
    return tensor


def to_stored(canonical: str, tensor: Tensor, form: Form) -> Tensor:
    """A canonical tensor as the form stores it, contiguous."""
    _, part = _split(canonical)
    if form is Form.FLA and _is_low_rank_matrix(canonical):
        tensor = tensor.T
    if part in (_NATIVE_VECTORS if form is Form.NATIVE else _MIX_VECTORS):
        tensor = tensor.reshape(1, 1, -1)
    return tensor.contiguous()


def stored_shape(canonical: str, shape: tuple[int, ...], form: Form) -> tuple[int, ...]:
    """A canonical shape as the form has it, but for leading axes of one."""
    return shape[::-1] if form is Form.FLA and _is_low_rank_matrix(canonical) else shape


def is_unused(stored: str) -> bool:
    """Whether a form may hold the tensor although no model reads it: layer 0 mixes no values."""
    return bool(
        re.match(r"blocks\.0\.att\.v[012]\Z|model\.layers\.0\.attn\.v_lora\.lora\.\d\.", stored)
    )


def names_of_old(names: Iterable[str]) -> bool:
    """Whether these are tensors of an RWKV before 7."""
    return any(".att.time_" in name for name in names)


def _split(canonical: str) -> tuple[str, str]:
    match = _BLOCK.match(canonical)
    return (match[1], match[2]) if match else ("", canonical)


def _is_low_rank_matrix(canonical: str) -> bool:
    match = _LOW_RANK.match(_split(canonical)[1])
    return match is not None and match[2] != "0"


def _canonical_rank(canonical: str) -> int:
    _, part = _split(canonical)
    matrix = _is_low_rank_matrix(canonical) or part == "att.r_k" or canonical in _MATRICES
    return 2 if matrix or _PROJECTION.match(part) else 1
