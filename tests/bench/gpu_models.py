"""Models of random weights and true geometry for the measurements of kernels."""

from __future__ import annotations

from typing import Any

import torch
from gpu_report import ACT, DEVICE, Report

from statevisor.guests.families import rwkv7, rwkv7_weights
from statevisor.guests.linear_cublas import LibraryLinear
from statevisor.guests.ops_fast import FastOps
from statevisor.guests.ops_triton import TritonOps
from statevisor.guests.stacks_triton import Stacks

GEOMETRIES = {
    "191M": rwkv7.Rwkv7Config(
        layers=12,
        width=768,
        heads=12,
        ffn=3072,
        rank_w=64,
        rank_a=64,
        rank_v=32,
        rank_g=128,
        vocab=65536,
    ),
    "1.5B": rwkv7.Rwkv7Config(
        layers=24,
        width=2048,
        heads=32,
        ffn=8192,
        rank_w=96,
        rank_a=96,
        rank_v=64,
        rank_g=256,
        vocab=65536,
    ),
}


# Hashing gigabytes of random weights would take longer than all measurements.
rwkv7_weights.tensors_digest = lambda tensors: "random"


def device_weights(config: rwkv7.Rwkv7Config) -> dict[str, torch.Tensor]:
    """Random tensors of that geometry, drawn on the device."""
    tensors = {}
    for name, shape in rwkv7.shapes(config).items():
        noise = torch.randn(shape, device=DEVICE)
        if len(shape) == 2 and not name.endswith("r_k"):
            inner = shape[0] if name[-1] in "12" else shape[1]
            tensors[name] = noise / inner**0.5
        else:
            tensors[name] = 0.1 * noise + (1.0 if "ln" in name and "weight" in name else 0.0)
    return tensors


def build(report: Report, name: str, tensors: dict[str, torch.Tensor], state: str) -> Any:
    """A model with the tiles that were chosen."""
    ops = TritonOps(DEVICE, ACT)
    ops.stacks = Stacks(report.tiles, True)
    return rwkv7.Rwkv7Model.build(GEOMETRIES[name], tensors, ops, state)


def mode_ops(mode: str) -> TritonOps:
    if mode == "exact":
        return TritonOps(DEVICE, ACT)
    return FastOps(DEVICE, ACT, 64) if mode == "fast" else TritonOps(DEVICE, ACT, LibraryLinear())
