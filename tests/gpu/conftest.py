"""What the GPU tests share: a small guest of random weights, its solo oracle, distances.

Without a CUDA device every file of this folder is skipped with that reason. The folder needs
pytest, torch, triton and the guests package only, so that it also runs on a bare GPU machine:
`run.py` beside this file builds the command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from statevisor.guests.bank import Bank
from statevisor.guests.batch import pack
from statevisor.guests.families import rwkv7
from statevisor.hypervisor.plan import Row

SMALL = rwkv7.Rwkv7Config(
    layers=3, width=256, heads=4, ffn=768, rank_w=32, rank_a=32, rank_v=16, rank_g=64, vocab=512
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gpu" in item.path.parts:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.inference_mode():
        yield


class Guest:
    """A model with a bank; rows are (slot, tokens)."""

    def __init__(self, ops, state: str, slots: int, config: rwkv7.Rwkv7Config = SMALL) -> None:
        tensors = rwkv7.random_weights(config, seed=5)
        self.tensors = tensors
        self.model = rwkv7.Rwkv7Model.build(config, tensors, ops, state)
        self.bank = Bank(self.model.layout, slots, ops.device)
        self.forward = lambda batch: self.model.forward(self.bank, batch)

    def pack(self, rows: Sequence[tuple[int, Sequence[int]]]):
        plan = [Row(slot=slot, tokens=tuple(tokens)) for slot, tokens in rows]
        return pack(plan, self.model.ops.device)

    def feed(self, rows: Sequence[tuple[int, Sequence[int]]], forward=None) -> torch.Tensor:
        """Logits [R, V] float32."""
        hidden = (forward or self.forward)(self.pack(rows))
        return self.model.logits(hidden)


@pytest.fixture
def make_guest(device) -> Callable[..., Guest]:
    """(act, state, slots, linear=, ops=) -> a guest on the Triton operators, or on others."""
    from statevisor.guests.ops_triton import TritonOps

    def make_guest(
        act: torch.dtype = torch.bfloat16,
        state: str = "F32",
        slots: int = 8,
        linear=None,
        ops=None,
    ) -> Guest:
        return Guest(ops or TritonOps(device, act, linear), state, slots)

    return make_guest


@pytest.fixture
def draw(device) -> Callable[..., torch.Tensor]:
    """(shape..., dtype=) -> standard normal numbers on the device."""
    generator = torch.Generator(device).manual_seed(7)

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    return draw


@pytest.fixture
def distance() -> Callable[[torch.Tensor, torch.Tensor], float]:
    """Relative distance from a float64 reference; NaN never compares as small."""

    def distance(got: torch.Tensor, want: torch.Tensor) -> float:
        return float((got.double() - want.double()).norm() / want.double().norm())

    return distance
