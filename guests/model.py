"""What a runner needs of a model family."""

from __future__ import annotations

from typing import Protocol

import torch

from statevisor.guests.bank import Bank
from statevisor.guests.ops import Ops, RaggedBatch
from statevisor.hypervisor.layout import Layout


class Model(Protocol):
    """Weights on a device, with the operators to run them. Holds no state of any actor."""

    @property
    def family(self) -> str: ...
    @property
    def ops(self) -> Ops: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def vocab(self) -> int: ...
    @property
    def digest(self) -> str:
        """Of the tensors as loaded, before any cast."""
        ...

    def matrices(self) -> tuple[torch.Tensor, ...]:
        """Every weight that goes into a linear."""
        ...

    def forward(self, bank: Bank, batch: RaggedBatch) -> torch.Tensor:
        """Feed the batch; returns each row's last hidden [R, C]. Modifies the batch's slots."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, V] float32 of hidden rows [R, C]."""
        ...
