"""Steps that run at once and wait for their tokens: on the CPU, and the twin of other ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from statevisor.hypervisor.following import LastDrawn
from statevisor.hypervisor.plan import RowResult, StepPlan

#: Runs a plan without rows that follow.
Run = Callable[[StepPlan], Sequence[RowResult]]


class Steps(Protocol):
    """How a runner steps its bank; a plan has been checked before it comes here."""

    @property
    def ahead(self) -> int:
        """How many plans are worth submitting before the first is collected."""
        ...

    def submit(self, plan: StepPlan) -> Any: ...

    def waits(self, ticket: Any) -> bool: ...

    def collect(self, ticket: Any) -> Sequence[Sequence[RowResult]]: ...


class PlainSteps:
    """`Steps` by a function that runs a plan at once."""

    ahead = 1

    def __init__(self, run: Run) -> None:
        self._run = run
        self._last = LastDrawn()

    def submit(self, plan: StepPlan) -> Sequence[Sequence[RowResult]]:
        return self._last.run(plan, self._run)

    def waits(self, ticket: Sequence[Sequence[RowResult]]) -> bool:
        return False

    def collect(self, ticket: Sequence[Sequence[RowResult]]) -> Sequence[Sequence[RowResult]]:
        return ticket
