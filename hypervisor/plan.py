"""One step as values: what the scheduler asks of a guest and what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from statevisor.hypervisor.sampling import Draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One actor's share of a step: feed `tokens` to `slot` in order, then perhaps draw one."""

    slot: int  #: 1..slots; slot 0 is the padding row
    tokens: tuple[int, ...]  #: at least one
    draw: Draw | None = None  #: None while the actor's gap stays open or nothing is to be sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Rows of one batched forward pass; every slot at most once."""

    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Log probabilities of the raw distribution (before penalties, temperature and cuts)."""

    chosen: float
    top: tuple[tuple[int, float], ...]  #: best first, ties to the lowest id


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """What a row gave."""

    token: int | None = None  #: the drawn token, if one was asked for
    logprobs: Logprobs | None = None
    finite: bool = True  #: False: the row's activations are not finite; its state is not to be used
