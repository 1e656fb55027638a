"""The forward pass of a 16-bit RWKV-7 in eight kernels a layer.

residual + norm + shift mixes -> r, k, v and LoRA downs -> LoRA ups -> recurrence with all that is
elementwise around it -> output -> residual + norm + shift mix -> ffn key -> ffn value; the sums of
the output's and the value's segments are added by the next residual. The equations are those of
`families/rwkv7.py`, whose pass over single operators stays as the twin; the bits are not, since
fewer values are rounded on the way. Both keep the exactness contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from statevisor.guests.bank import Bank
from statevisor.guests.families.rwkv7_weights import MIXES, Rwkv7Layer, Rwkv7Weights
from statevisor.guests.launch_triton import dependence
from statevisor.guests.linear_triton import BLOCK_K, ceiling
from statevisor.guests.mixers import shift_triton, time_triton
from statevisor.guests.ops import Activation, RaggedBatch
from statevisor.guests.ops_triton import NORM_WARPS, TritonOps, row_stride
from statevisor.guests.stacks_triton import Region, Stack

#: LoRAs in the order of their columns and planes.
_LORAS = ("w", "a", "g", "v")
_DOWN_ACTIVATIONS: dict[str, Activation] = {"w": "tanh", "g": "sigmoid"}

#: Channels of its weights that a product asks for while the kernel before it still runs.
AHEAD = 256
#: Programs of the recurrence of single tokens that a multiprocessor holds at once.
TIME_PROGRAMS = 8
#: Where there are more rows a program walks over some. By the state's type: how many it has under
#: way, the one it works on and those whose states are being copied, and how many such programs a
#: multiprocessor is given. With two under way the next copy began when the work was done.
WALKS = {torch.float16: (3, 8), torch.float32: (3, 6)}
#: Rows, by the state's type, up to which nothing hides how long a program of it takes, so that its
#: work is shared by more warps than one.
FEW_TIME_ROWS, FEW_TIME_WARPS = {torch.float16: 8, torch.float32: 16}, 4
#: Rows up to which a norm's mixes are read with its vectors, which takes twice the registers.
EARLY_ROWS = 256
#: Warps that share a quarter of a head in a longer row, rows of its state and never a sum: of many
#: programs, and of so few that multiprocessors would have nothing else to do.
PROMPT_WARPS, FEW_PROMPT_WARPS = 2, 4
#: Heads of a program before and behind the recurrence of longer rows, each one warp's.
PROMPT_HEADS = 4


class FusedRwkv7:
    """Stacked weights and the pass over them. Holds no state."""

    def __init__(self, ops: TritonOps, weights: Rwkv7Weights) -> None:
        """Copies the matrices of r, k, v and the LoRAs into stacks, see `weights`."""
        self._ops = ops
        self._layers = tuple(FusedLayer(layer) for layer in weights.layers)
        self._head = Stack(weights.head, ahead=AHEAD)
        for stack in (self._head, *(one for layer in self._layers for one in layer.stacks())):
            ops.stacks.know(stack)
        #: The same weights, those of r, k, v and the LoRA downs as views of the stacks.
        self.weights = replace(weights, layers=tuple(layer.plain for layer in self._layers))

    def forward(self, bank: Bank, batch: RaggedBatch) -> torch.Tensor:
        """Feed the batch; returns the normed last hidden of each row [R, C]. Modifies its slots."""
        weights = self.weights
        stacks = partial(self._ops.stacks, single=batch.longest == 1)
        config, table = weights.config, weights.embedding
        names = ("wkv", "shift_att", "shift_ffn")
        states = zip(*(bank.layers(name) for name in names), strict=True)
        x, parts, first = table, None, None
        for layer, (wkv, shift_att, shift_ffn) in zip(self._layers, states, strict=True):
            plain = layer.plain
            ids = batch.tokens if x is table else None
            norm = (plain.ln1_weight, plain.ln1_bias, config.norm_eps)
            x, mixed = self._mix(x, ids, parts, *norm, plain.mixes, shift_att, batch)
            downs = stacks(mixed, layer.downs)
            ups = stacks(downs, layer.ups)
            first = downs if first is None else first
            attended = self._recur(layer, downs, ups, first, wkv, batch)
            parts = stacks(attended, layer.output)
            norm = (plain.ln2_weight, plain.ln2_bias, config.norm_eps)
            x, mixed = self._mix(x, None, parts, *norm, plain.ffn_mix, shift_ffn, batch)
            parts = stacks(stacks(mixed, layer.ffn_key), layer.ffn_value)
        return self._norm(x, parts, batch)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, V] float32 of normed hidden rows [R, C]."""
        return self._ops.stacks(hidden, self._head, torch.float32)

    def _options(
        self, rows: int, warps: int, batch: RaggedBatch
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What every kernel of a pass over so many rows is launched with: constants, options."""
        dependent = dependence(self._ops.launch["DEPENDENT"], rows, batch.longest == 1)
        return {"DEPENDENT": dependent}, {
            "num_warps": warps,
            "launch_pdl": bool(dependent),
            # Contraction of products and sums is written out where it is wanted.
            "enable_fp_fusion": False,
        }

    def _mix(
        self,
        x: torch.Tensor,
        ids: torch.Tensor | None,
        parts: torch.Tensor | None,
        weight: torch.Tensor,
        bias: torch.Tensor,
        eps: float,
        mixes: torch.Tensor,
        shift: torch.Tensor,
        batch: RaggedBatch,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x (rows `ids` of it) plus the parts [N, C], and its norm mixed [M x N, C]."""
        tokens, width, count = len(batch.tokens), x.shape[1], len(mixes)
        added, out = x.new_empty(tokens, width), x.new_empty(count * tokens, width)
        longer = batch.longest > 1
        spill = shift.new_empty(len(batch.slots) if longer else 0, width)
        sizes = {
            "STRIDE": row_stride(shift, (width,)),
            "WIDTH": width,
            "BLOCK": 1 << (width - 1).bit_length(),
        }
        fixed, options = self._options(tokens, NORM_WARPS, batch)
        # Of the first of a pass not: what was written before must be seen when any of it starts.
        dependent = options["launch_pdl"] and ids is None
        self._ops.launcher(
            shift_triton.residual_mix_kernel,
            (tokens,),
            (
                x,
                batch.tokens if ids is None else ids,
                added if parts is None else parts,
                weight,
                bias,
                mixes,
                shift,
                spill,
                added,
                out,
                batch.rows,
                batch.slots,
                batch.starts,
                tokens,
            ),
            {
                "GATHER": ids is not None,
                "SINGLE": not longer,
                "EARLY": not longer and tokens <= EARLY_ROWS,
                "PARTS": 0 if parts is None else len(parts),
                "MIXES": count,
                "EPS": eps,
                **sizes,
                **fixed,
            },
            {**options, "launch_pdl": dependent},
        )
        if longer:
            self._ops.launcher(
                shift_triton.settle_kernel,
                (len(batch.slots),),
                (spill, shift, batch.slots, batch.starts),
                {**sizes, **fixed},
                options,
            )
        return added, out

    def _recur(
        self,
        layer: FusedLayer,
        downs: torch.Tensor,
        ups: torch.Tensor,
        first: torch.Tensor,
        state: torch.Tensor,
        batch: RaggedBatch,
    ) -> torch.Tensor:
        """The gated and normed output of the recurrence [N, C]; modifies state."""
        config = self.weights.config
        out = downs.new_empty(len(downs), config.width)
        square = (config.heads, config.head_size, config.head_size)
        operands = (downs, ups, first, layer.vectors)
        stride, rows, tokens = row_stride(state, square), len(batch.slots), len(downs)
        fixed, options = self._options(tokens, 1, batch)
        fixed |= {"HEADS": config.heads}
        shared = {"PITCH": downs.shape[1], "GATED": layer.gated, **fixed}
        singles = rows if batch.longest == 1 else batch.singles
        if singles:
            stages, each = self._walk(singles, state.dtype)
            warps = FEW_TIME_WARPS if singles <= FEW_TIME_ROWS[state.dtype] else 1
            self._ops.launcher(
                time_triton.token_kernel,
                (config.heads, each),
                (*operands, state, out, batch.slots, singles),
                {
                    "STRIDE": stride,
                    "EPS": config.group_norm_eps,
                    "STAGES": stages,
                    "WARPS": warps,
                    **shared,
                },
                {**options, "num_warps": warps},
            )
        if singles == rows:
            return out
        y = downs.new_empty(tokens, config.width, dtype=torch.float32)
        kept = y.new_empty(tokens, config.heads, time_triton.KEYS.value, config.head_size)
        bonus = y.new_empty(tokens, config.heads)
        # Of the rows behind those of single tokens; `starts` count from the first token of all.
        longer = tokens - singles, rows - singles
        downs, ups, first, kept_, bonus, y_, out_ = (
            whole[singles:] for whole in (downs, ups, first, kept, bonus, y, out)
        )
        launch, blocks = self._ops.launcher, (longer[0], ceiling(config.heads, PROMPT_HEADS))
        wide = {"WIDE": state.itemsize == 2}
        block = {"BLOCK_H": PROMPT_HEADS}
        options = {**options, "num_warps": PROMPT_HEADS}
        launch(
            time_triton.prompt_keys_kernel,
            blocks,
            (downs, ups, first, layer.vectors, kept_, bonus),
            {**shared, **wide, **block},
            options,
        )
        launch(
            time_triton.prompt_kernel,
            (4 * config.heads, longer[1]),
            (kept, state, y, batch.slots[singles:], batch.starts[singles:]),
            {"STRIDE": stride, **wide, **fixed},
            {**options, "num_warps": self._warps(4 * config.heads * longer[1])},
        )
        launch(
            time_triton.prompt_output_kernel,
            blocks,
            (y_, kept_, bonus, ups, layer.vectors, out_),
            {"EPS": config.group_norm_eps, **block, **fixed},
            options,
        )
        return out

    def _warps(self, programs: int) -> int:
        """Of a program of the recurrence of longer rows."""
        return FEW_PROMPT_WARPS if programs <= 2 * self._ops.multiprocessors else PROMPT_WARPS

    def _walk(self, rows: int, state: torch.dtype) -> tuple[int, int]:
        """Rows under way and programs per head of the recurrence of single tokens."""
        multiprocessors, heads = self._ops.multiprocessors, self.weights.config.heads
        if rows * heads <= TIME_PROGRAMS * multiprocessors:
            return 1, rows
        walked, programs = WALKS[state]
        each = programs * multiprocessors // heads
        return walked, max(1, each, ceiling(rows, time_triton.MOST_TURNS.value))

    def _norm(self, x: torch.Tensor, parts: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
        """The last norm of each row's last token [R, C]."""
        weights = self.weights
        rows, width = len(batch.slots), weights.config.width
        out = x.new_empty(rows, width)
        fixed, options = self._options(rows, NORM_WARPS, batch)
        self._ops.launcher(
            shift_triton.residual_norm_kernel,
            (rows,),
            (x, parts, batch.lasts, weights.ln_out_weight, weights.ln_out_bias, out, len(x)),
            {
                "PARTS": len(parts),
                "WIDTH": width,
                "EPS": weights.config.norm_eps,
                "BLOCK": 1 << (width - 1).bit_length(),
                **fixed,
            },
            options,
        )
        return out


class FusedLayer:
    """One layer's stacks, and its plain weights with views of them."""

    def __init__(self, layer: Rwkv7Layer) -> None:
        self.gated = layer.v1 is not None
        width = layer.key.shape[0]
        weights = [("r", layer.receptance), ("k", layer.key), ("v", layer.value)]
        weights += [(name, _padded(getattr(layer, name + "1"), layer.key)) for name in _LORAS]
        regions, at = [], 0
        for index, (name, weight) in enumerate(weights):
            regions.append(
                Region(
                    begin=at,
                    width=len(weight),
                    inner=width,
                    plane=MIXES.index(name),
                    activation=_DOWN_ACTIVATIONS.get(name) if index > 2 else None,
                )
            )
            at += len(weight)
        stacked = torch.cat([weight for _, weight in weights])
        self.downs = Stack(stacked, regions, ahead=AHEAD)
        self.ups = _ups(layer, regions[3:], width)
        self.output = Stack(layer.output, summed=True, ahead=AHEAD)
        self.ffn_key = Stack(layer.ffn_key, [_relu2(layer.ffn_key)], ahead=AHEAD)
        self.ffn_value = Stack(layer.ffn_value, summed=True, ahead=AHEAD, sparse=True)
        self.vectors = _vectors(layer)
        self.plain = _views(layer, stacked, regions)

    def stacks(self) -> tuple[Stack, ...]:
        """In the order of a pass."""
        return self.downs, self.ups, self.output, self.ffn_key, self.ffn_value


def _ups(layer: Rwkv7Layer, downs: list[Region], width: int) -> Stack:
    """The LoRA ups, each padded with zero columns to the width of its down in `downs`."""
    widest = max(region.width for region in downs)
    stacked, regions = layer.key.new_zeros(4 * width, widest), []
    for index, (name, down) in enumerate(zip(_LORAS, downs, strict=True)):
        up = getattr(layer, name + "2")
        if up is not None:
            stacked[index * width : (index + 1) * width, : up.shape[1]] = up
        regions.append(
            Region(begin=index * width, width=width, inner=down.width, column=down.begin)
        )
    return Stack(stacked, regions, ahead=BLOCK_K)


def _relu2(weight: torch.Tensor) -> Region:
    return Region(begin=0, width=weight.shape[0], inner=weight.shape[1], activation="relu2")


def _padded(weight: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """Zero rows up to a whole block of the ups' K; what a layer lacks is all zeros."""
    if weight is None:
        return like.new_zeros(BLOCK_K, like.shape[1])
    return functional.pad(weight, (0, 0, 0, -len(weight) % BLOCK_K))


def _views(layer: Rwkv7Layer, stacked: torch.Tensor, regions: Sequence[Region]) -> Rwkv7Layer:
    """The layer with its matrices of the stack as views of it, so that they are held once."""
    names = ("receptance", "key", "value", *(name + "1" for name in _LORAS))
    views = {}
    for name, region in zip(names, regions, strict=True):
        weight = getattr(layer, name)
        if weight is not None:
            views[name] = stacked[region.begin : region.begin + len(weight)]
    return replace(layer, **views)


def _vectors(layer: Rwkv7Layer) -> torch.Tensor:
    """[H, 8, 64] in the order of `time_triton.VECTORS`."""
    heads, size = layer.r_k.shape
    zero = torch.zeros_like(layer.w0)
    found = [getattr(layer, name) for name in time_triton.VECTORS]
    rows = [zero if vector is None else vector for vector in found]
    return torch.stack([row.reshape(heads, size) for row in rows], 1).contiguous()
