"""What the core needs from the outside, as Protocols: the machine it runs on and its guests.

What it needs of a store is in `image_ports.py` and `catalog_port.py`. Every port has a
standard-library twin (`guests/toy.py`, `store/memory.py`) and contract tests in `tests/contract`
that the twin and the real thing both pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from statevisor.hypervisor.layout import Fingerprints, Layout
from statevisor.hypervisor.plan import RowResult, StepPlan


class Clock(Protocol):
    """Time, so that tests need not sleep."""

    def now_us(self) -> int:
        """Microseconds since 1970, for records."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for idle times and deadlines."""
        ...


class Meter(Protocol):
    """Counters and histograms; names are those of the metrics page without their prefix."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put one value into a histogram."""
        ...

    def count(self, name: str, n: float = 1, **labels: str) -> None:
        """Add to a counter."""
        ...


class Tokenizer(Protocol):
    """Text and token ids. Pure and safe on any thread."""

    @property
    def bos(self) -> int | None:
        """The id put before the first prompt of an actor; None if the guest has none."""
        ...

    @property
    def eos(self) -> frozenset[int]:
        """Ids that end a turn unless `ignore_eos`."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text, without special tokens."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes that one token stands for; b"" for special tokens."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A rule to run: which, how and on what part of the state."""

    rule: str
    params: Mapping[str, Any]
    families: tuple[str, ...] | None = None  #: None: every family the rule applies to
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyDiff:
    """How far two states are apart in one layer of one family."""

    family: str
    layer: int
    norm_a: float
    norm_b: float
    distance: float  #: norm of the difference
    cosine: float | None  #: None if one of the two is zero


class Guest(Protocol):
    """A model with its bank of slots.

    `step`, `submit`, `waits`, `clear`, `load` and `copy` are called from the engine thread only,
    one at a time; `clear` and `copy` come behind every step submitted before and ahead of all that
    follow. `collect` and `save` are called from one other thread each, while steps run; none of
    these has a slot that is saved. From the thread that collects a plan may also be submitted that
    goes on as the one before, never while another is, and of no slot that the engine thread is
    about. The
    own steps of a slot that is saved or loaded have been collected. `save` and `load` see each
    `clear`, `copy` and `load` of the slot that has returned, and have taken effect when they
    return. A step promises the exactness contract:
    the row bytes and the drawn token of one row depend on the row's bytes before, its tokens and
    its draw, and on nothing else; fed in any split they are the same bits. A guest whose
    fingerprints are not exact promises none of it.
    """

    @property
    def name(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def fingerprints(self) -> Fingerprints: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def slots(self) -> int:
        """Usable slots: 1..slots."""
        ...

    @property
    def step_tokens(self) -> int:
        """Most tokens that one step may carry over all rows."""
        ...

    @property
    def rules(self) -> Mapping[str, int]:
        """Names of the rules this guest can run, with their versions."""
        ...

    @property
    def steps_ahead(self) -> int:
        """How many plans are worth submitting before the first of them is collected: 1 or more.

        More than 1 where a step runs by itself once it is submitted; then it takes up to MORE_AHEAD
        beyond that.
        """
        ...

    def step(self, plan: StepPlan) -> tuple[RowResult, ...]:
        """Run one batched forward pass; modifies the planned slots (and slot 0) only.

        The plan is one time.
        """
        ...

    def submit(self, plan: StepPlan) -> object:
        """Begin a plan, whose rows may follow those of the plan submitted before it.

        Returns what `collect` takes; a plan that has begun is collected, in the order of begin.
        """
        ...

    def waits(self, ticket: Any) -> bool:
        """Whether `collect` would have to wait."""
        ...

    def collect(self, ticket: Any) -> Sequence[Sequence[RowResult]]:
        """Wait for a submitted plan; for each time results as `step` gives them."""
        ...

    def clear(self, slot: int) -> None:
        """Make the slot the empty state (no token absorbed)."""
        ...

    def save(self, slot: int, out: memoryview, start: int | None = None) -> None:
        """Copy the slot's row into `out`; with `start`, what `out` holds of it from that byte on.

        Modifies nothing else.
        """
        ...

    def load(self, slot: int, row: memoryview, start: int | None = None) -> None:
        """Overwrite the slot with a row; with `start`, its bytes from there on with a part."""
        ...

    def copy(self, source: int, targets: Sequence[int]) -> None:
        """Copy one slot's row onto others."""
        ...

    def frames(self, count: int) -> memoryview:
        """Host memory for `count` rows, page-locked where the device can use that."""
        ...

    def mutate(self, mutation: Mutation, rows: Sequence[memoryview]) -> bytes:
        """Run a rule on the rows of its parents, first the actor's own; pure, safe on any thread.

        Raises: InvalidRequest (unknown rule, bad parameters or selection), CapabilityMissing.
        """
        ...

    def diff(self, a: memoryview, b: memoryview) -> tuple[FamilyDiff, ...]:
        """Compare two rows layer by layer; pure, safe on any thread."""
        ...

    def finite(self, row: memoryview) -> bool:
        """Whether every number of a row is finite; pure, safe on any thread."""
        ...
