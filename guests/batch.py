"""Packs the rows of a plan into the tensors of one ragged batch, with one copy to the device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from statevisor.guests.ops import RaggedBatch
from statevisor.hypervisor.plan import Row

#: Elements that every part of the buffer begins at a multiple of: 64 bytes, so that kernels that
#: are compiled for a pointer's alignment meet one alignment only.
_STRIDE = 8


def pack(rows: Sequence[Row], device: torch.device) -> RaggedBatch:
    """The batch of these rows, in their order; the copy may still be in flight on the stream."""
    lengths = [len(row.tokens) for row in rows]
    count, total = len(rows), sum(lengths)
    # Page-locked on a GPU host: the allocator keeps such memory until the copy has been made.
    host = torch.zeros(elements(total, count), dtype=torch.int64, pin_memory=device.type == "cuda")
    tokens, owners, slots, starts, lasts, firsts = parts(host, total, count)
    tokens[:] = torch.tensor([token for row in rows for token in row.tokens])
    slots[:] = torch.tensor([row.slot for row in rows])
    torch.cumsum(torch.tensor(lengths), 0, out=starts[1:])
    torch.sub(starts[1:], 1, out=lasts)
    owners[:] = torch.repeat_interleave(torch.tensor(lengths), output_size=total)
    firsts[starts[:-1]] = True
    return batch_of(host.to(device, non_blocking=True), total, count, longest=max(lengths))


def batch_of(
    buffer: torch.Tensor, tokens: int, rows: int, *, longest: int, singles: int = 0
) -> RaggedBatch:
    """The parts of a buffer as a batch; views of it."""
    found = parts(buffer, tokens, rows)
    return RaggedBatch(
        tokens=found[0],
        rows=found[1],
        slots=found[2],
        starts=found[3],
        lasts=found[4],
        firsts=found[5],
        longest=longest,
        singles=singles,
    )


def elements(tokens: int, rows: int) -> int:
    """How many a buffer has for so many tokens and rows."""
    return _ends(tokens, rows)[-1]


def parts(buffer: torch.Tensor, tokens: int, rows: int) -> tuple[torch.Tensor, ...]:
    """Views of a buffer: tokens, their rows, slots, starts, lasts, and whether a token is first."""
    ends = _ends(tokens, rows)
    views = [
        buffer[end - _padded(size) :][:size]
        for end, size in zip(ends, _sizes(tokens, rows), strict=True)
    ]
    return (*views[:-1], views[-1].view(torch.bool)[:tokens])


def _sizes(tokens: int, rows: int) -> tuple[int, ...]:
    return tokens, tokens, rows, rows + 1, rows, -(-tokens // 8)


def _ends(tokens: int, rows: int) -> list[int]:
    return list(accumulate(map(_padded, _sizes(tokens, rows))))


def _padded(size: int) -> int:
    return -(-size // _STRIDE) * _STRIDE
