"""The threads that own the device.

One begins its steps and does what writes to slots, one waits for results, one copies slots to the
host.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from statevisor.hypervisor.hands import Hands

P = ParamSpec("P")
T = TypeVar("T")


class Engine:
    """Runs a guest's calls one after the other on its own thread; saves of slots, and waits for
    steps, beside them.

    What writes to a slot keeps to the one order of the engine's thread: whom a copy is made of may
    leave its slot, and another be loaded there, before that copy's turn has come. A call that was
    handed over runs to its end even if the caller is cancelled: the device never sees half an
    operation, and the next call waits for it.
    """

    def __init__(self, name: str) -> None:
        self._steps = Hands(1, f"engine-{name}")
        self._waits = Hands(1, f"waits-{name}")
        self._copies = Hands(1, f"copies-{name}")

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run one call on the engine thread."""
        return await self._steps.run(partial(call, *args, **kwargs))

    async def beside(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run what only reads slots that no step on its way has; steps go on meanwhile."""
        return await self._copies.run(partial(call, *args, **kwargs))

    def part(
        self, call: Callable[[], T], tell: Callable[[T | None, BaseException | None], object]
    ) -> None:
        """Have one call run on the engine thread, from any thread once `begin` has been called.

        `tell` is called on the event loop with its result, or what it raised.
        """
        self._steps.give(call, tell)

    def step(self, call: Callable[[], None]) -> None:
        """Have what begins a step run on the engine thread, as `part`; it raises nothing."""
        self._steps.give(call, None)

    def wait(
        self, call: Callable[[], T], tell: Callable[[T | None, BaseException | None], object]
    ) -> None:
        """Have what waits for a step run on the thread for that, as `part`."""
        self._waits.give(call, tell)

    def begin(self) -> None:
        """Start the engine's threads."""
        self._steps.begin()
        self._waits.begin()

    async def settled(self) -> None:
        """Wait for every call that was handed over before; not for what steps give."""
        await self._steps.run(_nothing)
        await self._copies.run(_nothing)

    async def close(self) -> None:
        """Wait for the running calls and end the threads."""
        await self._steps.close()
        await self._waits.close()
        await self._copies.close()


def _nothing() -> None:
    return
