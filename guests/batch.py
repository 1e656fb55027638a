"""Packs the rows of a plan into the tensors of one ragged batch, with one copy to the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from statevisor.guests.ops import RaggedBatch
from statevisor.hypervisor.plan import Row

#: Elements that every part of the buffer begins at a multiple of: 64 bytes, so that kernels that
#: are compiled for a pointer's alignment meet one alignment only.
_STRIDE = 8


def pack(rows: Sequence[Row], device: torch.device) -> RaggedBatch:
    """The batch of these rows, in their order; the copy may still be in flight on the stream."""
    lengths = [len(row.tokens) for row in rows]
    count, total, longest = len(rows), sum(lengths), max(lengths)
    sizes = (total, total, count, count + 1, count, -(-total // 8))
    ends = _ends(sizes)
    # Page-locked on a GPU host: the allocator keeps such memory until the copy has been made.
    host = torch.zeros(ends[-1], dtype=torch.int64, pin_memory=device.type == "cuda")
    tokens, owners, slots, starts, lasts, firsts = _parts(host, sizes, ends)
    tokens[:] = torch.tensor([token for row in rows for token in row.tokens])
    slots[:] = torch.tensor([row.slot for row in rows])
    torch.cumsum(torch.tensor(lengths), 0, out=starts[1:])
    torch.sub(starts[1:], 1, out=lasts)
    owners[:] = torch.repeat_interleave(torch.tensor(lengths), output_size=total)
    firsts.view(torch.bool)[starts[:-1]] = True
    parts = _parts(host.to(device, non_blocking=True), sizes, ends)
    return RaggedBatch(
        tokens=parts[0],
        rows=parts[1],
        slots=parts[2],
        starts=parts[3],
        lasts=parts[4],
        firsts=parts[5].view(torch.bool)[:total],
        longest=longest,
    )


def _ends(sizes: Sequence[int]) -> list[int]:
    ends, at = [], 0
    for size in sizes:
        at += -(-size // _STRIDE) * _STRIDE
        ends.append(at)
    return ends


def _parts(
    buffer: torch.Tensor, sizes: Sequence[int], ends: Sequence[int]
) -> tuple[torch.Tensor, ...]:
    begins = (0, *ends[:-1])
    return tuple(buffer[at : at + size] for at, size in zip(begins, sizes, strict=True))
