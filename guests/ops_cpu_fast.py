"""The operators of the fast mode on a CPU: every product is one call of the library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from statevisor.guests.ops import Activation
from statevisor.guests.ops_cpu import CpuOps, activate


class FastCpuOps(CpuOps):
    """`Ops` on the CPU, bound to no bits."""

    exact = False

    def fingerprint(self) -> Mapping[str, str]:
        return {**super().fingerprint(), "mode": "fast"}

    def admit(self, weights: Iterable[torch.Tensor]) -> None:
        """Nothing is promised, so nothing is compared."""

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, activation: Activation | None = None
    ) -> torch.Tensor:
        return activate(torch.mm(x, weight.t()), activation)
