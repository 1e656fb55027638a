"""Plans on their way to the guest, on it and back, in the one order in which they were given.

Plans are begun on the engine's thread and read on another, so that what is handed to the engine
waits for no result. A plan whose rows all follow goes on without anybody's looking: who has read a
plan begins it again, until the event loop holds it. So a guest does not wait for an event loop that
is busy, and who arrives there waits for no more than what is out. Plans begin one after the other,
by whichever thread; the engine's other calls are of slots that are in no plan that goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from statevisor.hypervisor.engine import Engine
from statevisor.hypervisor.pace import Pace
from statevisor.hypervisor.plan import RowResult, StepPlan
from statevisor.hypervisor.ports import Clock, Guest

#: Most steps of a plan that goes on which the event loop has not taken back.
MOST_UNTOLD: Final = 16


@dataclass(slots=True, eq=False)
class Flight:
    """A plan that is given once, or again and again."""

    plan: StepPlan
    most: int = 1  #: how often it may be given; more than once only if every row follows
    given: int = 0  #: how often it was


F = TypeVar("F", bound=Flight)


@dataclass(frozen=True, slots=True)
class Landing(Generic[F]):
    """What came of a flight that was given some times at once."""

    flight: F
    times: int
    results: Sequence[Sequence[RowResult]]  #: each time's
    at: float  #: of the monotonic clock, when it was read
    error: Exception | None = None


class Runway(Generic[F]):
    """Gives plans of one guest and reads them.

    Methods are called on the event loop, but for those that say another thread.
    """

    def __init__(
        self, guest: Guest, engine: Engine, clock: Clock, news: Callable[[], None]
    ) -> None:
        """news: called on the event loop whenever there is something to take."""
        self._guest = guest
        self._engine = engine
        self._clock = clock
        self._news = news
        self._landed: list[Landing[F]] = []
        self._begins = Lock()  #: held by who begins a plan; taken before the other
        self._tickets: deque[object] = deque(maxlen=1)  #: of the newest plan; under that lock
        # Below: under this lock.
        self._lock = Lock()
        self._pace = Pace()
        self._queued = 0  #: plans that were given and not begun
        self._out = 0  #: plans that were given and not read
        self._plans = self._steps = 0  #: that were given and not taken
        self._going: F | None = None  #: the newest, while it goes on
        self._read_at = 0.0  #: when the last that was taken was read

    @property
    def plans(self) -> int:
        """How many were given and have not been taken."""
        return self._plans

    def going(self, flight: Flight) -> bool:
        """Whether it goes on by itself."""
        return self._going is flight

    def give(self, flight: F) -> None:
        """Hand a plan over behind all that were given; what was going on goes no further."""
        self._engine.begin()
        with self._lock:
            self._going = flight if flight.most > 1 else None
            self._queued += 1
            self._count(flight, 1)
        self._engine.step(partial(self._begin, flight))

    def hold(self) -> None:
        """Nothing goes on any more; `Flight.given` stands still when this returns."""
        with self._lock:
            self._going = None

    def take(self) -> list[Landing[F]]:
        """All that were read since, in the order in which they were given."""
        landed, self._landed = self._landed, []
        now = self._clock.monotonic() if landed else 0.0
        with self._lock:
            self._plans -= len(landed)
            self._steps -= sum(landing.times for landing in landed)
            for landing in landed:
                if landing.flight is self._going and landing.at > self._read_at:
                    self._pace.loop((now - landing.at) / (landing.at - self._read_at))
                self._read_at = landing.at
            waits = self._times() > 0
        if waits:
            self._engine.step(self._go_on)
        return landed

    def _count(self, flight: F, times: int) -> None:
        flight.given += times
        self._out += 1
        self._plans += 1
        self._steps += times

    def _times(self) -> int:
        """How often what goes on is to be given now; under the lock."""
        flight = self._going
        if flight is None or self._queued or self._out >= self._guest.steps_ahead:
            return 0
        return max(0, min(self._pace.times, flight.most - flight.given, MOST_UNTOLD - self._steps))

    # -- the engine's thread, and the one that waits ---------------------------------------------
    def _begin(self, flight: F) -> None:
        with self._begins:
            with self._lock:
                self._queued -= 1
            self._submit(flight, flight.plan)
        self._go_on()

    def _go_on(self) -> None:
        """Begin what goes on once more, if it is time."""
        with self._begins:
            while True:
                with self._lock:
                    flight, times = self._going, self._times()
                    if flight is None or not times:
                        return
                    again = flight.given
                    self._count(flight, times)
                plan = replace(flight.plan, offset=flight.plan.offset + again, times=times)
                self._submit(flight, plan, goes_on=True)

    def _submit(self, flight: F, plan: StepPlan, *, goes_on: bool = False) -> None:
        tell = partial(self._tell, flight, plan.times)
        try:
            waited = goes_on and not self._guest.waits(self._tickets[-1])
            ticket = self._guest.submit(plan)
        except Exception as error:  # told when it is this plan's turn
            self.hold()
            self._engine.wait(partial(self._refused, error), tell)
            return
        self._tickets.append(ticket)
        self._engine.wait(partial(self._read, ticket), tell)
        if goes_on:
            with self._lock:
                self._pace.guest(waited=waited)

    # -- the thread that waits -------------------------------------------------------------------
    def _read(self, ticket: object) -> tuple[Sequence[Sequence[RowResult]], float]:
        try:
            results = self._guest.collect(ticket)
        except BaseException:
            self.hold()
            raise
        finally:
            with self._lock:
                self._out -= 1
        at = self._clock.monotonic()
        self._go_on()
        return results, at

    def _refused(self, error: Exception) -> Any:
        """As `_read` of a plan that could not be begun."""
        with self._lock:
            self._out -= 1
        raise error

    # -- the event loop --------------------------------------------------------------------------
    def _tell(self, flight: F, times: int, found: Any, error: BaseException | None) -> None:
        if error is None:
            results, at = found
            self._landed.append(Landing(flight, times, results, at))
        elif isinstance(error, Exception):
            self._landed.append(Landing(flight, times, (), self._clock.monotonic(), error))
        else:
            raise error
        self._news()
