"""A matrix product whose rows do not know how many they are.

out [N, O] = act(x [N, K] @ weight [O, K]^T). What decides the bits is fixed by the weight's shape
alone: the step along K (64), the number of segments K is cut into and the order in which their
sums are added. What may follow the number of rows is only which tile of the output a program owns
and whether one program adds up all segments of its tile or several programs do one segment each;
then the one that arrives last adds the stored sums, in the same order. No sum is an atomic.

The weight is the left operand of the tensor core instruction, so that the smallest tile holds 16
rows of x and the kind of instruction is the same from 1 row on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from statevisor.guests.ops import Activation

BLOCK_K = 64
#: Programs that should share a product of one row; a power of two near the GPU's multiprocessors.
TARGET_PROGRAMS = 128
_CODES: dict[Activation | None, int] = {None: 0, "tanh": 1, "sigmoid": 2, "relu2": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How one product is cut into programs."""

    block_o: int
    block_n: int
    warps: int
    stages: int
    spread: bool = (
        False  #: segments of K in programs of their own; False: one program does them in turn
    )

    def programs(self, features: int, rows: int) -> int:
        """Tiles of an output of that size."""
        return triton.cdiv(features, self.block_o) * triton.cdiv(rows, self.block_n)

    def __str__(self) -> str:
        spread = "spread" if self.spread else "whole"
        return f"{self.block_o}x{self.block_n}w{self.warps}s{self.stages}{spread}"


def segments(features: int, inner: int) -> int:
    """Into how many parts K is cut: a function of the weight's shape, never of the rows."""
    tiles, steps = triton.cdiv(features, 64), triton.cdiv(inner, BLOCK_K)
    count = 1
    while tiles * count < TARGET_PROGRAMS and steps >= 4 * count and count < 16:
        count *= 2
    return count


def bucket(rows: int) -> int:
    """The row bucket that picks a tile: a power of two from 16 to 1024."""
    return min(1024, max(16, triton.next_power_of_2(rows)))


def default_tile(features: int, inner: int, rows: int, dtype: torch.dtype) -> Tile:
    """The largest tile that still gives every multiprocessor work."""
    if dtype == torch.float32:  # not on the tensor cores
        cuts = (Tile(block_o=64, block_n=16, warps=4, stages=2),)
    elif bucket(rows) >= 128:
        cuts = (
            Tile(block_o=128, block_n=128, warps=8, stages=4),
            Tile(block_o=64, block_n=64, warps=4, stages=5),
        )
    else:
        cuts = (Tile(block_o=64, block_n=min(64, bucket(rows)), warps=4, stages=5),)
    for cut in cuts:
        if cut.programs(features, rows) >= TARGET_PROGRAMS:
            return cut
    return replace(cuts[-1], spread=segments(features, inner) > 1)


@triton.jit
def _activated(total, CODE: tl.constexpr):
    if CODE == 1:
        # tanh through exp of a number that cannot overflow.
        e = tl.exp(-2.0 * tl.abs(total))
        size = (1.0 - e) / (1.0 + e)
        total = tl.where(total < 0.0, -size, size)
    elif CODE == 2:
        total = 1.0 / (1.0 + tl.exp(-total))
    elif CODE == 3:
        total = tl.where(total < 0.0, 0.0, total)
        total = total * total
    return total


@triton.jit(do_not_specialize=["rows"])
def linear_kernel(
    x,
    weight,
    out,
    sums,
    arrivals,
    rows: tl.int32,
    FEATURES: tl.int32,
    INNER: tl.int32,
    SEGMENTS: tl.constexpr,
    SPREAD: tl.constexpr,
    CODE: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STEP: tl.constexpr,
):
    """One tile of act(x @ weight^T), or one segment of its sum.

    sums [tiles, SEGMENTS, BLOCK_O, BLOCK_N] float32 and arrivals [tiles] int32 (zero before and
    after) are used where SPREAD.
    """
    row_tiles = tl.cdiv(rows, BLOCK_N)
    tile = tl.program_id(0)
    at_o = (tile // row_tiles) * BLOCK_O + tl.arange(0, BLOCK_O)
    at_n = (tile % row_tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    at_k = tl.arange(0, STEP)
    # Lanes past the end repeat the last row: they cost no mask, and what they give is not stored.
    row_o = tl.minimum(at_o, FEATURES - 1).to(tl.int64)
    row_n = tl.minimum(at_n, rows - 1).to(tl.int64)
    left = weight + row_o[:, None] * INNER + at_k[None, :]
    right = x + row_n[None, :] * INNER + at_k[:, None]
    steps = tl.cdiv(INNER, STEP)
    length = tl.cdiv(steps, SEGMENTS)
    first = tl.program_id(1) if SPREAD else 0
    total = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
    for segment in range(first, first + 1 if SPREAD else SEGMENTS):
        part = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
        for step in range(segment * length, tl.minimum((segment + 1) * length, steps)):
            if EVEN:
                a = tl.load(left + step * STEP)
                b = tl.load(right + step * STEP)
            else:
                inside = at_k < INNER - step * STEP
                a = tl.load(left + step * STEP, mask=inside[None, :], other=0.0)
                b = tl.load(right + step * STEP, mask=inside[:, None], other=0.0)
            part = tl.dot(a, b, part, input_precision="ieee")
        total += part
    last = True
    if SPREAD:
        cell = tl.arange(0, BLOCK_O)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        mine = sums + tile.to(tl.int64) * (SEGMENTS * BLOCK_O * BLOCK_N) + cell
        tl.store(mine + first * (BLOCK_O * BLOCK_N), total)
        # All threads' stores come before the release of the one thread that counts.
        tl.debug_barrier()
        last = tl.atomic_add(arrivals + tile, 1, sem="acq_rel", scope="gpu") == SEGMENTS - 1
        if last:
            total = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
            for segment in range(SEGMENTS):
                # Past the first-level cache, which does not see other multiprocessors' stores.
                at = mine + segment * (BLOCK_O * BLOCK_N)
                total += tl.load(at, cache_modifier=".cg")
            tl.store(arrivals + tile, 0)
    if last:
        here = at_n[None, :].to(tl.int64) * FEATURES + at_o[:, None]
        real = (at_o < FEATURES)[:, None] & (at_n < rows)[None, :]
        tl.store(out + here, _activated(total, CODE).to(out.dtype.element_ty), mask=real)


class TritonLinear:
    """The row-invariant product with its tiles and its counters.

    Calls of one object must follow each other on one stream (or in one graph): they share the
    counters by which the programs of a tile find out who is last.
    """

    kind = "triton"

    def __init__(
        self,
        device: torch.device,
        tiles: Mapping[tuple[int, int, int], Tile] | None = None,
    ) -> None:
        """tiles: (features, inner, bucket) -> Tile, over the default rule."""
        self._tiles = dict(tiles or {})
        self._arrivals = torch.zeros(8192, dtype=torch.int32, device=device)

    def tile(self, features: int, inner: int, rows: int, dtype: torch.dtype) -> Tile:
        """How the product of these sizes is cut."""
        chosen = self._tiles.get((features, inner, bucket(rows)))
        if chosen is None or dtype == torch.float32:
            return default_tile(features, inner, rows, dtype)
        return chosen

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        activation: Activation | None = None,
        tile: Tile | None = None,
    ) -> torch.Tensor:
        """act(x [N, K] @ weight [O, K]^T) -> [N, O]; tile: instead of the chosen one, for tests."""
        (rows, inner), features = x.shape, weight.shape[0]
        out = x.new_empty(rows, features)
        if rows == 0:
            return out
        cut = tile or self.tile(features, inner, rows, x.dtype)
        parts = segments(features, inner)
        spread = cut.spread and parts > 1
        tiles = cut.programs(features, rows)
        assert not spread or tiles <= self._arrivals.numel(), "too many tiles for the counters"
        cells = tiles * parts * cut.block_o * cut.block_n if spread else 0
        sums = torch.empty(cells, dtype=torch.float32, device=x.device)
        linear_kernel[(tiles, parts if spread else 1)](
            x,
            weight,
            out,
            sums,
            self._arrivals,
            rows,
            features,
            inner,
            SEGMENTS=parts,
            SPREAD=spread,
            CODE=_CODES[activation],
            EVEN=inner % BLOCK_K == 0,
            BLOCK_O=cut.block_o,
            BLOCK_N=cut.block_n,
            STEP=BLOCK_K,
            num_warps=cut.warps,
            num_stages=cut.stages,
            enable_fp_fusion=False,
        )
        return out

    def describe(self) -> str:
        """What fixes the bits: the rule's version and the chosen tiles."""
        chosen = (f"{o}x{k}@{n}:{tile}" for (o, k, n), tile in sorted(self._tiles.items()))
        return f"triton-linear-1 step {BLOCK_K} target {TARGET_PROGRAMS} " + " ".join(chosen)
