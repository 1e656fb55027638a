"""Products of stacked weights as one launch each: what the layers of a 16-bit guest run on.

A stack is one matrix [O, K] whose regions are the weights of a launch, one under the other; a
region reads its own operand (a plane or some columns of x) and its own width of K. What decides
the bits is fixed by the region's shape: the tensor core's order along K and the number of segments
K is cut into. Segment sums are not added here: they leave as planes [S, N, O] in float32, which the
next kernel adds in order, so no program waits for another. Where one program does all segments of a
tile it adds them in the same order and one plane leaves. Tiles are free per number of rows.

The weight is the left operand, so that the smallest tile holds 16 rows and the kind of instruction
is the same from 1 row on. Tiles come by the bulk copy engine (tensor descriptors), which fills what
lies outside a matrix with zeros.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from statevisor.guests.launch_triton import (
    EARLY,
    Launcher,
    allow_next,
    await_previous,
    dependence,
)
from statevisor.guests.linear_triton import (
    BLOCK_K,
    CODES,
    TARGET_PROGRAMS,
    Shape,
    Tile,
    activated,
    bucket,
    ceiling,
    segments,
)
from statevisor.guests.ops import Activation
from statevisor.guests.sparse_triton import sparse_kernel
from statevisor.hypervisor.errors import CapabilityMissing

#: Most segments of one K: each is a plane that the next kernel reads.
MOST_SEGMENTS = 8
#: How a single row of a sparse stack is cut: outputs of a program, channels a turn (the first that
#: divide a segment) and turns under way.
SPARSE_BLOCK, SPARSE_STEPS, SPARSE_STAGES = 64, (256, 128, 64), 4


@triton.jit
def ask_ahead(
    memory,
    row,
    column,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Ask for AHEAD channels of BLOCK rows of a 16-bit matrix into the second-level cache."""
    at = tl.minimum(row + tl.arange(0, BLOCK), ROWS - 1).to(tl.int64)
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0;",
        "=r,l,n",
        [memory + at * WIDTH + column, 2 * AHEAD],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit(do_not_specialize=["rows"])
def stack_kernel(
    x,
    weight,
    memory,
    out,
    rows: tl.int32,
    BEGINS: tl.constexpr,
    WIDTHS: tl.constexpr,
    PLANES: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNERS: tl.constexpr,
    UNIFORM: tl.constexpr,
    WIDEST: tl.constexpr,
    CODES: tl.constexpr,
    PITCH: tl.constexpr,
    SEGMENTS: tl.constexpr,
    SPREAD: tl.constexpr,
    LENGTH: tl.constexpr,
    AHEAD: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STEP: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One tile of one region, or one segment of its sum.

    The six tuples have one entry per region: its first row and number of rows in `weight`, the
    plane (of `rows` rows) and first column of x it reads, its K and its activation. UNIFORM: all
    have one K; WIDEST: columns of the weight. out: planes
    [SEGMENTS or 1, rows, PITCH]. LENGTH: channels of a segment. memory: the weight again, as a
    pointer; AHEAD: channels of it that are asked for into the second-level cache before the kernel
    before has ended.
    """
    row_tiles = tl.cdiv(rows, BLOCK_N)
    pid = tl.program_id(0)
    first = pid % SEGMENTS if SPREAD else pid * 0
    tile = pid // SEGMENTS if SPREAD else pid
    tile_o = tile // row_tiles
    begin = pid * 0 + BEGINS[0]
    width = pid * 0 + WIDTHS[0]
    plane = pid * 0 + PLANES[0]
    column = pid * 0 + COLUMNS[0]
    inner = INNERS[0] if UNIFORM else pid * 0 + INNERS[0]
    code = pid * 0 + CODES[0]
    origin = pid * 0
    base = pid * 0
    for i in tl.static_range(1, len(BEGINS)):
        base += tl.cdiv(WIDTHS[i - 1], BLOCK_O)
        if tile_o >= base:
            begin = pid * 0 + BEGINS[i]
            width = pid * 0 + WIDTHS[i]
            plane = pid * 0 + PLANES[i]
            column = pid * 0 + COLUMNS[i]
            if not UNIFORM:
                inner = pid * 0 + INNERS[i]
            code = pid * 0 + CODES[i]
            origin = base
    from_o = (tile_o - origin) * BLOCK_O
    from_n = (tile % row_tiles) * BLOCK_N
    row_o = begin + from_o
    row_n = plane * rows + from_n
    if AHEAD:
        ask_ahead(memory, row_o, first * LENGTH, PITCH, WIDEST, BLOCK_O, AHEAD)
    await_previous(DEPENDENT)
    total = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
    if SEGMENTS == 1:
        for at in range(0, inner, STEP):
            a = weight.load([row_o, at])
            b = x.load([row_n, column + at])
            total = tl.dot(a, b.T, total)
    elif SPREAD:
        for at in range(first * LENGTH, tl.minimum((first + 1) * LENGTH, inner), STEP):
            a = weight.load([row_o, at])
            b = x.load([row_n, column + at])
            total = tl.dot(a, b.T, total)
    else:
        for segment in range(SEGMENTS):
            part = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
            for at in range(segment * LENGTH, tl.minimum((segment + 1) * LENGTH, inner), STEP):
                a = weight.load([row_o, at])
                b = x.load([row_n, column + at])
                part = tl.dot(a, b.T, part)
            total += part
    allow_next(DEPENDENT)
    at_o = from_o + tl.arange(0, BLOCK_O)
    at_n = from_n + tl.arange(0, BLOCK_N)
    line = (first * rows + at_n).to(tl.int64) * PITCH
    here = line[None, :] + (begin + at_o)[:, None]
    real = (at_o < width)[:, None] & (at_n < rows)[None, :]
    tl.store(out + here, activated(total, code).to(out.dtype.element_ty), mask=real)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Rows of a stack that are one weight, and the operand it is multiplied with."""

    begin: int  #: first row in the stack
    width: int  #: rows
    inner: int  #: its K; the stack's columns past it are not read
    plane: int = 0  #: of x [planes x N, K]
    column: int = 0  #: of x where its operand begins
    activation: Activation | None = None


class Stack:
    """One matrix of stacked weights and what is known of its launches."""

    def __init__(
        self,
        weight: torch.Tensor,
        regions: Sequence[Region] | None = None,
        *,
        summed: bool = False,
        ahead: int = 0,
        sparse: bool = False,
    ) -> None:
        """weight [O, K], contiguous; regions: the whole of it is one weight by default.

        summed: K may have segments, and the launch gives planes of their sums. ahead: channels of
        K that a dependent launch asks for before its turn. sparse: many of x are zero; the weight
        is then held a second time, for `sparse_triton`, if it is finite.
        """
        features, inner = weight.shape
        self.weight = weight
        self.shape: Shape = (features, inner)
        self.regions = tuple(regions or (Region(begin=0, width=features, inner=inner),))
        self.planes = 1 + max(region.plane for region in self.regions)
        self.summed = summed
        self.segments = min(MOST_SEGMENTS, segments(self.shape)) if summed else 1
        self.length = ceiling(ceiling(inner, BLOCK_K), self.segments) * BLOCK_K
        self.ahead = min(ahead, self.length)
        self.constants = {
            "BEGINS": tuple(region.begin for region in self.regions),
            "WIDTHS": tuple(region.width for region in self.regions),
            "PLANES": tuple(region.plane for region in self.regions),
            "COLUMNS": tuple(region.column for region in self.regions),
            "INNERS": tuple(region.inner for region in self.regions),
            "UNIFORM": len({region.inner for region in self.regions}) == 1,
            "WIDEST": inner,
            "CODES": tuple(CODES[region.activation] for region in self.regions),
            "PITCH": features,
            "SEGMENTS": self.segments,
            "LENGTH": self.length,
        }
        sparse = sparse and self.segments > 1 and self.length <= 32 * self.turn
        finite = weight.is_meta or bool(sparse and weight.isfinite().all())
        #: The weight with a channel's numbers side by side, where only some are read.
        self.channels = weight.T.contiguous() if sparse and finite else None
        self._described: dict[tuple[int, int], TensorDescriptor] = {}

    @property
    def turn(self) -> int:
        """Channels that a product of only some channels looks at a time."""
        return next(step for step in SPARSE_STEPS if self.length % step == 0)

    def described(self, tile: Tile) -> TensorDescriptor:
        """The matrix for the copy engine in blocks of a tile."""
        block = (tile.block_o, tile.step)
        if block not in self._described:
            self._described[block] = TensorDescriptor.from_tensor(self.weight, list(block))
        return self._described[block]

    def holds(self, tile: Tile) -> bool:
        """Whether no turn of the tile's loop reads past the end of a region's K or of a segment."""
        if self.segments > 1:
            return self.length % tile.step == 0
        return len(self.regions) == 1 or all(
            region.inner % tile.step == 0 for region in self.regions
        )

    def programs(self, tile: Tile, rows: int) -> int:
        """Of a launch; a tile belongs to one region."""
        tiles = sum(ceiling(region.width, tile.block_o) for region in self.regions)
        return tiles * ceiling(rows, tile.block_n) * (self.segments if tile.spread else 1)


class Stacks:
    """Launches products of stacks with the tile that is pinned for their shape and row count."""

    def __init__(
        self,
        tiles: Mapping[tuple[int, int, int], Tile] | None = None,
        dependent: bool = False,
        launcher: Launcher | None = None,
    ) -> None:
        """tiles: (O, K, bucket) -> Tile, before the rule. dependent: as `launch_triton` says."""
        self._tiles = dict(tiles or {})
        self._dependent = dependent
        self._launch = launcher or Launcher()
        #: One stack of every kind that a model has, for the check at start.
        self.known: dict[Hashable, Stack] = {}

    def know(self, stack: Stack) -> None:
        """Remember a stack of a model."""
        self.known.setdefault((stack.shape, stack.regions, stack.segments), stack)

    def check(self, counts: Sequence[int]) -> None:
        """Compare rows at these row counts with the same rows alone, for every known stack.

        Compiles the products on the way. Raises: CapabilityMissing (some row changed).
        """
        for stack in self.known.values():
            weight, most = stack.weight, max(counts)
            columns = max(region.column + region.inner for region in stack.regions)
            generator = torch.Generator(weight.device).manual_seed(2)
            size = (stack.planes, most, columns)
            x = torch.randn(size, generator=generator, device=weight.device).to(weight.dtype)
            if stack.channels is not None:
                x = x.relu()
            for rows in counts:
                got = self._alone(x[:, :rows], stack)
                for row in {0, rows // 2, rows - 1}:
                    if not torch.equal(got[row], self._alone(x[:, row : row + 1], stack)[0]):
                        raise CapabilityMissing(
                            f"a product with weights of {list(stack.shape)} gives other bits at"
                            f" {rows} rows than at one on this device"
                        )

    def _alone(self, x: torch.Tensor, stack: Stack) -> torch.Tensor:
        out = self(x.flatten(0, 1).contiguous(), stack)
        return added(out) if stack.summed else out

    def describe(self) -> str:
        """What fixes the bits, and the tiles, which should not."""
        chosen = "".join(f"{o}x{k}@{n}:{tile}," for (o, k, n), tile in sorted(self._tiles.items()))
        digest = hashlib.sha256(chosen.encode()).hexdigest()[:16]
        return f"stacks-1 block {BLOCK_K} segments {MOST_SEGMENTS} tiles {digest}"

    def tile(self, stack: Stack, rows: int) -> Tile:
        """How a launch is cut."""
        chosen = self._tiles.get((*stack.shape, bucket(rows)))
        return chosen if chosen is not None and stack.holds(chosen) else default_cut(stack, rows)

    def __call__(
        self,
        x: torch.Tensor,
        stack: Stack,
        dtype: torch.dtype | None = None,
        tile: Tile | None = None,
        *,
        single: bool = True,
    ) -> torch.Tensor:
        """x [planes x N, K] -> [N, O] in `dtype` (x's by default).

        Of a summed stack: planes [S or 1, N, O] float32, to be added in order. tile: instead of
        the chosen one, for tests and measurements. single: as `dependence` says, of the pass.
        """
        rows = x.shape[0] // stack.planes
        cut = tile or self.tile(stack, rows)
        assert stack.holds(cut), f"{cut} does not divide the segments of {stack.shape}"
        spread = cut.spread and stack.segments > 1
        dependent = dependence(self._dependent, rows, single)
        features = stack.shape[0]
        if stack.summed:
            planes = stack.segments if spread else 1
            out = torch.empty(planes, rows, features, dtype=torch.float32, device=x.device)
        else:
            out = torch.empty(rows, features, dtype=dtype or x.dtype, device=x.device)
        if stack.channels is not None and rows == 1 and tile is None:
            return self._sparse(x, stack, stack.channels)
        if rows:
            self._launch(
                stack_kernel,
                (stack.programs(cut, rows),),
                (
                    TensorDescriptor.from_tensor(x, [cut.block_n, cut.step]),
                    stack.described(cut),
                    stack.weight,
                    out,
                    rows,
                ),
                {
                    **stack.constants,
                    "SPREAD": spread,
                    # Where programs that wait would be in the way, what they ask for is too.
                    "AHEAD": stack.ahead if dependent == EARLY.value else 0,
                    "BLOCK_O": cut.block_o,
                    "BLOCK_N": cut.block_n,
                    "STEP": cut.step,
                    "DEPENDENT": dependent,
                },
                {
                    "num_warps": cut.warps,
                    "num_stages": cut.stages,
                    "launch_pdl": bool(dependent),
                    "enable_fp_fusion": False,
                },
            )
        return out

    def _sparse(self, x: torch.Tensor, stack: Stack, channels: torch.Tensor) -> torch.Tensor:
        """Planes of the sums of one row, as with a tile of a segment a program."""
        features, inner = stack.shape
        out = torch.empty(stack.segments, 1, features, dtype=torch.float32, device=x.device)
        dependent = dependence(self._dependent, 1, single=True)
        self._launch(
            sparse_kernel,
            (ceiling(features, SPARSE_BLOCK) * stack.segments,),
            (TensorDescriptor.from_tensor(x, [16, stack.turn]), x, channels, out),
            {
                "WIDTH": features,
                "INNER": inner,
                "SEGMENTS": stack.segments,
                "LENGTH": stack.length,
                "TURNS": 1 << (stack.length // stack.turn - 1).bit_length(),
                "BLOCK_O": SPARSE_BLOCK,
                "BLOCK_N": 16,
                "STEP": stack.turn,
                "DEPENDENT": dependent,
            },
            {
                "num_warps": 4,
                "num_stages": SPARSE_STAGES,
                "launch_pdl": bool(dependent),
                "enable_fp_fusion": False,
            },
        )
        return out


def default_cut(stack: Stack, rows: int) -> Tile:
    """The largest tile that still gives every multiprocessor work."""
    size = bucket(rows)
    cuts = [Tile(block_o=64, block_n=min(64, size), warps=4, stages=5)]
    if size >= 128:
        cuts.insert(0, Tile(block_o=128, block_n=128, warps=8, stages=4))
    for cut in cuts:
        if stack.programs(cut, rows) >= TARGET_PROGRAMS:
            return cut
    return replace(cuts[-1], spread=stack.segments > 1)


def added(planes: torch.Tensor) -> torch.Tensor:
    """The sum of segment planes [S, N, O] in the order of the kernels, for tests and checks."""
    total = planes[0]
    for plane in planes[1:]:
        total = total + plane
    return total
