"""The operators of the fast mode: the library's products and chunked prefill, without the contract.

Here a row's bits may change with its company, so what an actor says can depend on who runs beside
it, and a replay may differ from what was told: the mode has to be asked for, and its build is never
taken for an exact one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any

import torch

from statevisor.guests.linear_cublas import LibraryLinear
from statevisor.guests.ops import RaggedBatch
from statevisor.guests.ops_triton import TritonOps

#: Tokens of the longest row from which chunks beat the recurrence.
CHUNKED = 64


class FastOps(TritonOps):
    """`Ops` on one CUDA device, bound to no bits."""

    def __init__(self, device: torch.device, act: torch.dtype) -> None:
        super().__init__(device, act, LibraryLinear())

    def fingerprint(self) -> Mapping[str, str]:
        """As of the exact operators, and what else the results come from."""
        return {
            **super().fingerprint(),
            "mode": "fast",
            "flash-linear-attention": version("flash-linear-attention"),
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
        if batch.longest < CHUNKED:
            return super().wkv7(r, decay, k, v, kk, a, state, batch)
        # Imported here: its kernels ask for a driver.
        from fla.ops.rwkv7 import chunk_rwkv7

        return chunked(chunk_rwkv7, r, decay, k, v, kk, a, state, batch)


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
