"""A matrix product whose rows do not know how many they are, and groups of such products.

out [N, O] = act(x [N, K] @ weight [O, K]^T). What decides the bits is fixed by the weight's shape
alone: the step along K (64), the number of segments K is cut into and the order in which their
sums are added. What may follow the number of rows is only which tile of the output a program owns
and whether one program adds up all segments of its tile or several programs do one segment each;
then the one that arrives last adds the stored sums, in the same order. No sum is an atomic.

The weight is the left operand of the tensor core instruction, so that the smallest tile holds 16
rows of x and the kind of instruction is the same from 1 row on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from statevisor.guests.launch_triton import await_previous, can_depend
from statevisor.guests.ops import Activation, Product

BLOCK_K = 64
#: Programs that should share a product of one row; a power of two near the GPU's multiprocessors.
TARGET_PROGRAMS = 128
#: Counters of arrived programs; a launch that spreads segments has at most so many programs.
COUNTERS = 1 << 15
CODES: dict[Activation | None, int] = {None: 0, "tanh": 1, "sigmoid": 2, "relu2": 3}

Shape = tuple[int, int]  #: (O, K)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How a launch is cut into programs."""

    block_o: int
    block_n: int
    warps: int
    stages: int
    step: int = (
        BLOCK_K  #: channels of K per turn, whole blocks: the instructions' order is the same
    )
    spread: bool = False  #: segments of K in programs of their own; else one does them in turn

    def programs(self, shapes: Sequence[Shape], rows: int) -> int:
        """Tiles of outputs of these sizes."""
        return sum(ceiling(features, self.block_o) for features, _ in shapes) * ceiling(
            rows, self.block_n
        )

    def __str__(self) -> str:
        """E.g. 64x16x128w4s5+, where + stands for spread."""
        cut = f"{self.block_o}x{self.block_n}x{self.step}w{self.warps}s{self.stages}"
        return cut + "+" * self.spread

    @classmethod
    def parse(cls, text: str) -> Tile:
        """The reverse of `str`. Raises: ValueError."""
        sizes, _, rest = text.rstrip("+").partition("w")
        block_o, block_n, step = map(int, sizes.split("x"))
        warps, stages = map(int, rest.split("s"))
        return cls(
            block_o=block_o,
            block_n=block_n,
            step=step,
            warps=warps,
            stages=stages,
            spread=text.endswith("+"),
        )


def ceiling(count: int, size: int) -> int:
    """How many blocks of `size` hold `count`; in Python, where Triton's own takes microseconds."""
    return -(-count // size)


def segments(shape: Shape) -> int:
    """Into how many parts K is cut: a function of the weight's shape, never of the rows."""
    features, inner = shape
    tiles, steps = ceiling(features, 64), ceiling(inner, BLOCK_K)
    count = 1
    while tiles * count < TARGET_PROGRAMS and steps >= 4 * count and count < 16:
        count *= 2
    return count


def segment_length(shape: Shape) -> int:
    """Channels of K in a segment (the last may be shorter): whole blocks."""
    return ceiling(ceiling(shape[1], BLOCK_K), segments(shape)) * BLOCK_K


def bucket(rows: int) -> int:
    """The row bucket that picks a tile: a power of two from 16 to 1024."""
    return min(1024, max(16, 1 << (rows - 1).bit_length()))


def default_tile(shapes: Sequence[Shape], rows: int, dtype: torch.dtype) -> Tile:
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
        if cut.programs(shapes, rows) >= TARGET_PROGRAMS:
            return cut
    return replace(cuts[-1], spread=any(segments(shape) > 1 for shape in shapes))


@triton.jit
def activated(total, code):
    if code == 1:
        # tanh through exp of a number that cannot overflow.
        e = tl.exp(-2.0 * tl.abs(total))
        size = (1.0 - e) / (1.0 + e)
        total = tl.where(total < 0.0, -size, size)
    elif code == 2:
        total = 1.0 / (1.0 + tl.exp(-total))
    elif code == 3:
        total = tl.where(total < 0.0, 0.0, total)
        total = total * total
    return total


@triton.jit(do_not_specialize=["rows"])
def linear_kernel(
    xs,
    weights,
    outs,
    features,
    inners,
    parts,
    codes,
    sums,
    arrivals,
    rows: tl.int32,
    COUNT: tl.constexpr,
    WHOLE: tl.constexpr,
    SPREAD: tl.constexpr,
    EVEN: tl.constexpr,
    HINT: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One tile of one of COUNT products, or one segment of its sum.

    The first seven are tuples with one entry per product. sums [programs, BLOCK_O, BLOCK_N]
    float32 and arrivals [programs] int32 (zero before and after) are used where SPREAD. WHOLE: no K
    has segments; EVEN: every segment is a multiple of STEP; HINT divides every K. STEP changes no
    bit: the sums run over K in the order of the tensor core instruction.
    """
    row_tiles = tl.cdiv(rows, BLOCK_N)
    pid = tl.program_id(0)
    x = xs[0]
    weight = weights[0]
    out = outs[0]
    width = features[0]
    inner = inners[0]
    count = parts[0]
    code = codes[0]
    origin = pid * 0
    base = pid * 0
    for i in tl.static_range(1, COUNT):
        base += tl.cdiv(features[i - 1], BLOCK_O) * row_tiles * (parts[i - 1] if SPREAD else 1)
        if pid >= base:
            x = xs[i]
            weight = weights[i]
            out = outs[i]
            width = features[i]
            inner = inners[i]
            count = parts[i]
            code = codes[i]
            origin = base
    inner = tl.multiple_of(inner, HINT)
    local = pid - origin
    first = local % count if SPREAD else pid * 0
    tile = local // count if SPREAD else local
    at_o = (tile // row_tiles) * BLOCK_O + tl.arange(0, BLOCK_O)
    at_n = (tile % row_tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    at_k = tl.arange(0, STEP)
    # Lanes past the end repeat the last row: they cost no mask, and what they give is not stored.
    row_o = tl.minimum(at_o, width - 1).to(tl.int64)
    row_n = tl.minimum(at_n, rows - 1).to(tl.int64)
    length = tl.cdiv(tl.cdiv(inner, BLOCK), count) * BLOCK
    await_previous(DEPENDENT)
    left = weight + row_o[:, None] * inner + at_k[None, :]
    right = x + row_n[None, :] * inner + at_k[:, None]
    total = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
    for segment in range(first, first + 1 if SPREAD or WHOLE else count):
        part = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
        end = tl.minimum((segment + 1) * length, inner)
        for at in range(segment * length, end, STEP):
            if EVEN:
                a = tl.load(left + at)
                b = tl.load(right + at)
            else:
                a = tl.load(left + at, mask=(at_k < end - at)[None, :], other=0.0)
                b = tl.load(right + at, mask=(at_k < end - at)[:, None], other=0.0)
            part = tl.dot(a, b, part, input_precision="ieee")
        # Two sums take twice the registers, so one is kept where it is the same.
        if WHOLE:
            total = part
        else:
            total += part
    last = True
    if SPREAD:
        cells: tl.constexpr = BLOCK_O * BLOCK_N
        cell = tl.arange(0, BLOCK_O)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        counter = origin + tile * count
        mine = sums + counter.to(tl.int64) * cells + cell
        tl.store(mine + first * cells, total)
        # All threads' stores come before the release of the one thread that counts.
        tl.debug_barrier()
        last = tl.atomic_add(arrivals + counter, 1, sem="acq_rel", scope="gpu") == count - 1
        if last:
            total = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
            for segment in range(count):
                # Past the first-level cache, which does not see other multiprocessors' stores.
                total += tl.load(mine + segment * cells, cache_modifier=".cg")
            tl.store(arrivals + counter, 0)
    if last:
        here = at_n[None, :].to(tl.int64) * width + at_o[:, None]
        real = (at_o < width)[:, None] & (at_n < rows)[None, :]
        tl.store(out + here, activated(total, code).to(out.dtype.element_ty), mask=real)


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
        dependent: bool | None = None,
    ) -> None:
        """tiles: (sum of O, greatest K, bucket) -> Tile for 16-bit operands, before the rule.

        dependent: launch as `launch_triton` says; by default where the device can.
        """
        self._tiles = dict(tiles or {})
        self._dependent = can_depend(device) if dependent is None else dependent
        self._arrivals = torch.zeros(COUNTERS, dtype=torch.int32, device=device)

    def tile(self, shapes: Sequence[Shape], rows: int, dtype: torch.dtype) -> Tile:
        """How a launch of these weights is cut."""
        features, inner = sum(shape[0] for shape in shapes), max(shape[1] for shape in shapes)
        chosen = self._tiles.get((features, inner, bucket(rows)))
        if chosen is None or dtype == torch.float32:
            return default_tile(shapes, rows, dtype)
        return chosen

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, activation: Activation | None = None
    ) -> torch.Tensor:
        """act(x [N, K] @ weight [O, K]^T) -> [N, O]."""
        return self.group([(x, weight, activation)])[0]

    def group(self, products: Sequence[Product], tile: Tile | None = None) -> list[torch.Tensor]:
        """Several products of as many rows in one launch; each has the bits of a call of its own.

        tile: instead of the chosen one, for tests and measurements.
        """
        xs, weights, activations = zip(*products, strict=True)
        shapes = [(weight.shape[0], weight.shape[1]) for weight in weights]
        rows = xs[0].shape[0]
        outs = [x.new_empty(rows, features) for x, (features, _) in zip(xs, shapes, strict=True)]
        if rows == 0:
            return outs
        cut = tile or self.tile(shapes, rows, xs[0].dtype)
        parts = tuple(segments(shape) for shape in shapes)
        spread = cut.spread and max(parts) > 1
        programs = sum(
            cut.programs([shape], rows) * (count if spread else 1)
            for shape, count in zip(shapes, parts, strict=True)
        )
        assert not spread or programs <= COUNTERS, f"{programs} programs are too many to count"
        cells = programs * cut.block_o * cut.block_n if spread else 0
        linear_kernel[(programs,)](
            xs,
            weights,
            tuple(outs),
            tuple(features for features, _ in shapes),
            tuple(inner for _, inner in shapes),
            parts,
            tuple(CODES[activation] for activation in activations),
            torch.empty(cells, dtype=torch.float32, device=xs[0].device),
            self._arrivals,
            rows,
            COUNT=len(products),
            WHOLE=max(parts) == 1,
            SPREAD=spread,
            EVEN=all(
                inner % segment_length((features, inner)) == 0
                and segment_length((features, inner)) % cut.step == 0
                for features, inner in shapes
            ),
            HINT=16 if all(inner % 16 == 0 for _, inner in shapes) else 1,
            BLOCK_O=cut.block_o,
            BLOCK_N=cut.block_n,
            BLOCK=BLOCK_K,
            STEP=cut.step,
            DEPENDENT=self._dependent,
            num_warps=cut.warps,
            num_stages=cut.stages,
            launch_pdl=self._dependent,
            enable_fp_fusion=False,
        )
        return outs

    def describe(self) -> str:
        """What fixes the bits, and the tiles, which should not."""
        chosen = "".join(f"{o}x{k}@{n}:{tile}," for (o, k, n), tile in sorted(self._tiles.items()))
        digest = hashlib.sha256(chosen.encode()).hexdigest()[:16]
        return f"triton-linear-1 block {BLOCK_K} target {TARGET_PROGRAMS} tiles {digest}"
