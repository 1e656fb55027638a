"""Acts that happen at the same time, and how full the batch was meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

from statevisor.api.demo.person import Answer, Person
from statevisor.hypervisor.errors import StatevisorError

#: Long enough for any answer that is given among dreamers.
_LONG_DREAM = 4096


def together(*acts: Callable[[], Answer]) -> list[Answer]:
    """Run the acts at the same time, one thread each."""
    with ThreadPoolExecutor(len(acts)) as pool:
        return [begun.result() for begun in [pool.submit(act) for act in acts]]


def among(neighbours: list[Person], act: Callable[[], Answer], settings: dict[str, Any]) -> Answer:
    """Run `act` while every neighbour is in the middle of a long dream."""
    begun = [Event() for _ in neighbours]
    leave = Event()

    def dream(person: Person, talking: Event) -> None:
        def seen(_: dict[str, Any]) -> None:
            talking.set()
            if leave.is_set():
                raise _Enough

        try:
            person.stream(seen, max_tokens=_LONG_DREAM, **settings)
        except _Enough:
            pass
        finally:
            talking.set()

    with ThreadPoolExecutor(len(neighbours)) as pool:
        dreams = [pool.submit(dream, *pair) for pair in zip(neighbours, begun, strict=True)]
        try:
            for talking in begun:
                talking.wait()
            answer = act()
        finally:
            leave.set()
        for one in dreams:
            one.result()
    return answer


class _Enough(StatevisorError):
    """The dream is no longer needed."""


def mean_rows(before: dict[str, float], after: dict[str, float]) -> float:
    """Rows of a mean step between two readings of the metrics."""

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    return grown("statevisor_step_rows_sum") / max(1.0, grown("statevisor_step_rows_count"))
