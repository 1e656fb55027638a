"""A tiny random RWKV-7 in milliseconds, and the vocabulary of the exactness tests.

poison: before every step all free slots and slot 0 are NaN. canary: after every step the bytes of
every slot that was not in the plan are what they were. twin: what one actor alone gave, fed one
token at a time into a slot of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from statevisor.guests.families.rwkv7 import Rwkv7Config, Rwkv7Model, random_weights
from statevisor.guests.ops_cpu import CpuOps
from statevisor.guests.runner import Runner
from statevisor.guests.sampling import sample
from statevisor.guests.tokenizer_bytes import ByteTokenizer
from statevisor.hypervisor.plan import Row, RowResult, StepPlan
from statevisor.hypervisor.sampling import Draw, SamplerSettings

GREEDY = SamplerSettings()
CONFIG = Rwkv7Config(
    layers=2, width=128, heads=2, ffn=256, rank_w=8, rank_a=8, rank_v=8, rank_g=16, vocab=64
)
TENSORS = random_weights(CONFIG, seed=11)


@dataclass(slots=True)
class Rig:
    """A runner whose every step is watched: free slots poisoned, bystanders compared."""

    model: Rwkv7Model
    slots: int = 34
    sampler: Callable[..., Sequence[RowResult]] = sample
    guest: Runner = field(init=False)
    live: set[int] = field(init=False, default_factory=set)
    logits: dict[int, torch.Tensor] = field(init=False, default_factory=dict)
    _asked: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.guest = Runner(
            name="tiny",
            model=self.model,
            tokenizer=ByteTokenizer(),
            slots=self.slots,
            step_tokens=4096,
            sampler=self._sample,
        )

    def open(self, slot: int) -> None:
        """A new actor: its slot is the empty state."""
        self.guest.clear(slot)
        self.live.add(slot)

    def close(self, *slots: int) -> None:
        """The actors are gone; their bytes stay until the next step poisons them."""
        self.live -= set(slots)

    def step(self, rows: dict[int, Sequence[int]], seed: int = 1) -> dict[int, RowResult]:
        """Feed tokens to slots in the order given, drawing after each; keeps the logits.

        Raises: AssertionError (a slot outside the plan changed).
        """
        bank = self.guest.bank.bytes.view(torch.int64)
        free = [slot for slot in range(self.slots + 1) if slot not in self.live]
        bank[free] = -1  # all bits set: a NaN in every float format
        others = [slot for slot in range(1, self.slots + 1) if slot not in rows]
        before = bank[others]
        plan = StepPlan(
            rows=tuple(
                Row(slot=slot, tokens=tuple(tokens), draw=draw(seed, 1))
                for slot, tokens in rows.items()
            )
        )
        self._asked = list(rows)
        results = self.guest.step(plan)
        assert torch.equal(bank[others], before), "a slot outside the plan changed"
        return dict(zip(rows, results, strict=True))

    def greedy(self, slot: int, last: int, count: int) -> list[int]:
        """Generate from a slot, whose state has absorbed all before `last`."""
        found = []
        for _ in range(count):
            result = self.step({slot: [last]})[slot]
            assert result.token is not None
            found.append(last := result.token)
        return found

    def row(self, slot: int) -> bytes:
        """The slot's bytes."""
        out = bytearray(self.guest.layout.row_bytes)
        self.guest.save(slot, memoryview(out))
        return bytes(out)

    def _sample(self, logits: torch.Tensor, draws: Sequence[Draw]) -> Sequence[RowResult]:
        self.logits |= zip(self._asked, logits.clone(), strict=True)
        return self.sampler(logits, draws)


@dataclass(frozen=True, slots=True)
class Twin:
    """One actor alone: its state and logits after each token; index 0 is the empty state."""

    tokens: tuple[int, ...]
    rows: tuple[bytes, ...]
    logits: tuple[torch.Tensor, ...]


def draw(seed: int, position: int, settings: SamplerSettings = GREEDY) -> Draw:
    return Draw(seed=seed, position=position, settings=settings)


def build_model(
    ops: CpuOps | None = None, state_dtype: str = "F32", config: Rwkv7Config = CONFIG
) -> Rwkv7Model:
    tensors = TENSORS if config == CONFIG else random_weights(config, seed=12)
    model = Rwkv7Model.build(config, tensors, ops or CpuOps(), state_dtype)
    if ops is None:
        model.ops.admit(model.matrices())
    return model


def text_of(actor: int, length: int) -> tuple[int, ...]:
    """The tokens of an actor: always the same for the same number."""
    return tuple(random.Random(actor).choices(range(CONFIG.vocab), k=length))


def run_alone(model: Rwkv7Model, tokens: Sequence[int], slot: int = 1) -> Twin:
    rig = Rig(model, slots=slot)
    rig.open(slot)
    rows, logits = [rig.row(slot)], []
    for token in tokens:
        rig.step({slot: [token]})
        rows.append(rig.row(slot))
        logits.append(rig.logits[slot])
    return Twin(tuple(tokens), tuple(rows), tuple(logits))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Most of these tests are quicker on one; the build of every rig is then the same too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", params=["F32", "F16"])
def model(request: pytest.FixtureRequest) -> Rwkv7Model:
    return build_model(state_dtype=request.param)


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Rwkv7Model]:
    return build_model


@pytest.fixture
def rig(model: Rwkv7Model) -> Rig:
    return Rig(model)


@pytest.fixture(scope="session")
def make_rig() -> Callable[..., Rig]:
    return Rig


@pytest.fixture(scope="session")
def twin(model: Rwkv7Model) -> Callable[[int, int], Twin]:
    """Twins by actor number and length, each run once."""
    known: dict[int, Twin] = {}

    def find(actor: int, length: int) -> Twin:
        if actor not in known or len(known[actor].tokens) < length:
            known[actor] = run_alone(model, text_of(actor, max(length, 24)))
        return known[actor]

    return find


@pytest.fixture(scope="session")
def alone() -> Callable[..., Twin]:
    return run_alone


@pytest.fixture(scope="session")
def text() -> Callable[[int, int], tuple[int, ...]]:
    return text_of


@pytest.fixture(scope="session")
def tiny() -> dict[str, Any]:
    """The geometry and tensors all models of these tests are made of."""
    return {"config": CONFIG, "tensors": TENSORS}
