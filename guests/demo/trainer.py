"""One training step on static tensors, and how its rate goes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from statevisor.guests.demo.corpus import Rows


class Trainer:
    """One step on static tensors, run directly or replayed as a CUDA graph."""

    def __init__(self, model: Any, *, rows: int, length: int, device: str) -> None:
        """length: ids the model is given of a row."""
        import torch

        self.model = model
        self.device = device
        self.rate = torch.tensor(0.0, device=device)
        matrices = [p for p in model.parameters() if p.ndim == 2]
        others = [p for p in model.parameters() if p.ndim != 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
            lr=self.rate,
            betas=(0.9, 0.99),
            fused=True,
            capturable=device == "cuda",
        )
        shape = (rows, length + 1)
        self.ids = torch.zeros(shape, dtype=torch.int64, device=device)
        self.weights = torch.zeros(shape, dtype=torch.float32, device=device)
        self.loss = torch.zeros((), device=device)
        self.run: Callable[[], None] = self.compute

    def compute(self) -> None:
        """Forward, backward and update; leaves the loss of all scored bytes in `self.loss`."""
        import torch
        from torch.nn import functional

        with torch.autocast(self.device, torch.bfloat16, cache_enabled=False):
            logits = self.model(input_ids=self.ids[:, :-1], use_cache=False).logits
        each = functional.cross_entropy(
            logits.flatten(0, 1).float(), self.ids[:, 1:].flatten(), reduction="none"
        )
        weights = self.weights[:, 1:].flatten()
        loss = (each * weights).sum() / weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        self.loss.copy_(loss.detach())

    def feed(self, rows: Rows) -> None:
        """Put a batch into the static tensors."""
        import torch

        self.ids.copy_(torch.from_numpy(rows.ids))
        self.weights.copy_(torch.from_numpy(rows.weights))

    def capture(self) -> None:
        """Record the step; must be called with a learning rate of 0 and after `feed`."""
        import torch

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.compute()
        eager = self.loss.item()
        graph.replay()
        if not abs(self.loss.item() - eager) < 1e-2:
            raise RuntimeError(f"the graph's loss {self.loss.item()} is not the step's {eager}")
        self.run = graph.replay


def schedule(done: float) -> float:
    """Share of the highest rate at a share of the run: a short rise, then a cosine to 4%."""
    if done < 0.02:
        return done / 0.02
    return 0.04 + 0.96 * 0.5 * (1 + math.cos(math.pi * (done - 0.02) / 0.98))
