"""Digests of tensors, for the fingerprint of the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from blake3 import blake3


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Digest of names, shapes, dtypes and bytes, whatever the order of the mapping."""
    hasher = blake3(max_threads=blake3.AUTO)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        head = json.dumps([name, list(tensor.shape), str(tensor.dtype)]).encode()
        hasher.update(len(head).to_bytes(8, "little") + head)
        hasher.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return "blake3:" + hasher.hexdigest()
