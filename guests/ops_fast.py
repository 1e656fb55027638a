"""The operators of the fast mode: the library's products and chunked prefill, without the contract.

Here a row's bits may change with its company, so what an actor says can depend on who runs beside
it, and a replay may differ from what was told: the mode has to be asked for, and its build is never
taken for an exact one. On a CPU see `ops_cpu_fast.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from statevisor.guests.launch_triton import can_depend
from statevisor.guests.linear_cublas import LibraryLinear
from statevisor.guests.linear_triton import Tile
from statevisor.guests.ops import RaggedBatch
from statevisor.guests.ops_triton import TritonOps
from statevisor.guests.stacks_triton import Stack, Stacks
from statevisor.guests.tiles import TILES

#: Tokens of the longest row from which the recurrence is made in chunks. A pass in pieces takes the
#: host several times the exact pass's launches, which are eight milliseconds of a 1.5B guest; below
#: this number the exact pass, a graph, has ended by then.
CHUNKED = 2048
#: Rows from which the library beats a stack's kernel: of a square or wide matrix, of a deep one.
LIBRARY_WIDE, LIBRARY_DEEP = 256, 1024


class LibraryStacks(Stacks):
    """Products of stacks, by the library where it is faster."""

    def __call__(
        self,
        x: torch.Tensor,
        stack: Stack,
        dtype: torch.dtype | None = None,
        tile: Tile | None = None,
        *,
        single: bool = True,
    ) -> torch.Tensor:
        """As `Stacks`; the planes of a summed stack may be one."""
        if tile is not None or not by_library(stack, x.shape[0]):
            return super().__call__(x, stack, dtype, tile, single=single)
        if stack.summed:
            return torch.mm(x, stack.weight.T, out_dtype=torch.float32)[None]
        return torch.mm(x, stack.weight.T, out_dtype=dtype or x.dtype)

    def describe(self) -> str:
        """What fixes the bits."""
        return f"{super().describe()}, library from {LIBRARY_WIDE} and {LIBRARY_DEEP} rows"


def by_library(stack: Stack, rows: int) -> bool:
    """Whether the library takes less time for so many rows: measured, see docs/benchmarks."""
    if len(stack.regions) > 1 or stack.regions[0].activation is not None:
        return False
    features, inner = stack.shape
    return rows >= (LIBRARY_WIDE if inner <= features else LIBRARY_DEEP)


class FastOps(TritonOps):
    """`Ops` on one CUDA device, bound to no bits."""

    exact = False

    def __init__(self, device: torch.device, act: torch.dtype, chunked: int = CHUNKED) -> None:
        """chunked: as `CHUNKED`, without effect where there is no library for it."""
        super().__init__(device, act)
        self.stacks = LibraryStacks(TILES, can_depend(device), self.launcher)
        # Of the pass over single operators, which is the one in chunks.
        self._linear = LibraryLinear()
        self._rules = _version("flash-linear-attention")
        self.chunked = None if self._rules == "none" else chunked

    def fingerprint(self) -> Mapping[str, str]:
        """As of the exact operators, and what else the results come from."""
        return {
            **super().fingerprint(),
            "mode": "fast",
            "chunks": f"flash-linear-attention {self._rules} from {self.chunked}",
        }

    def admit(self, weights: Iterable[torch.Tensor]) -> None:
        """Nothing is promised, so nothing is compared."""

    def wkv7(
        self,
        r: torch.Tensor,
        decay: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        kk: torch.Tensor,
        a: torch.Tensor,
        state: torch.Tensor,
        batch: RaggedBatch,
    ) -> torch.Tensor:
        """The recurrence in place in the bank, in chunks where rows are long; modifies state."""
        if self.chunked is None or batch.longest < self.chunked:
            return super().wkv7(r, decay, k, v, kk, a, state, batch)
        # Imported here: its kernels ask for a driver.
        from fla.ops.rwkv7 import chunk_rwkv7

        return chunked(chunk_rwkv7, r, decay, k, v, kk, a, state, batch)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def chunked(
    rule: Callable[..., Any],
    r: torch.Tensor,
    decay: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kk: torch.Tensor,
    a: torch.Tensor,
    state: torch.Tensor,
    batch: RaggedBatch,
) -> torch.Tensor:
    """`Ops.wkv7` by a rule with the arguments of fla's `chunk_rwkv7`, which keeps S as [k, v].

    Modifies `state`.
    """
    y, after = rule(
        r[None],
        decay.log()[None],
        k[None],
        v[None],
        -kk[None],
        (kk * a)[None],
        scale=1.0,
        initial_state=state[batch.slots].float().transpose(-1, -2).contiguous(),
        output_final_state=True,
        cu_seqlens=batch.starts,
    )
    state[batch.slots] = after.transpose(-1, -2).to(state.dtype)
    out: torch.Tensor = y[0].float()
    return out
