"""What is known of an actor while it is in memory: its committed record and where its bytes are."""

from __future__ import annotations

from dataclasses import replace

from statevisor.hypervisor import lifecycle
from statevisor.hypervisor.lifecycle import Effect, Event, Power
from statevisor.hypervisor.lineage import Path, same_state
from statevisor.hypervisor.mailbox import Mailbox
from statevisor.hypervisor.records import ActorRecord, ImageRef
from statevisor.hypervisor.stream import TurnStream
from statevisor.hypervisor.turn import Turn


class Actor:
    """One actor in memory. It lives on the event loop and is touched by nothing else."""

    def __init__(self, record: ActorRecord, path: Path, mailbox: Mailbox, now: float) -> None:
        self.record = record
        self.path = path
        self.mailbox = mailbox
        self.used = now  #: seconds of the monotonic clock
        self.slot: int | None = None
        self.absorbed = 0  #: tokens its slot has taken in; meaningful while it holds one
        self.imaged = 0  #: position of the newest image known on its path
        self._image: tuple[int, int, ImageRef] | None = None  # of segment and position
        self._last: tuple[int, int, int] | None = None  # token before segment and position
        self.parent: tuple[int, str | None] = (-1, None)  #: as last read; see roster.glance
        #: Its whole transcript, while it is being created: nothing else can be known of its state.
        self.new: tuple[int, ...] | None = None
        self.unasked = False  #: it is being recovered, and nobody has asked for it
        self.turn: Turn | None = None
        self.turns: dict[str, TurnStream] = {}  #: waiting and running turns, by id
        self._power = Power.QUARANTINED if record.quarantine else Power.HIBERNATED

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def power(self) -> Power:
        """What it is doing; changed by `happen` alone."""
        return self._power

    @property
    def segment(self) -> int:
        """The segment its transcript ends on."""
        return self.record.segment

    @property
    def rest(self) -> int:
        """How many tokens its state has absorbed between turns: all but the last."""
        return max(self.record.position - 1, 0)

    @property
    def state(self) -> tuple[int, int]:
        """Key of the bytes in its slot (see lineage.same_state)."""
        return same_state(self.path, self.absorbed)

    @property
    def image(self) -> ImageRef | None:
        """The image of where it stands, as far as is known; it may have gone since."""
        if self._image is None or self._image[:2] != (self.segment, self.record.position):
            return None
        return self._image[2]

    def is_imaged(self, segment: int, position: int, ref: ImageRef) -> None:
        """There is an image of a place where it stands."""
        self.imaged = position
        self._image = (segment, position, ref)

    @property
    def last_token(self) -> int | None:
        """The last token of its transcript, if that is known without the journal."""
        if self._last is None or self._last[:2] != (self.segment, self.record.position):
            return None
        return self._last[2]

    def ends_with(self, token: int) -> None:
        """The last token of its transcript is this."""
        self._last = (self.segment, self.record.position, token)

    def happen(self, event: Event) -> tuple[Effect, ...]:
        """Advance the power; returns what the residency has to do. Raises: InvalidTransition."""
        step = lifecycle.advance(self._power, event)
        self._power = step.power
        return step.effects

    def committed(self) -> ActorRecord:
        """The record with the position that readers may see, also in the middle of a turn."""
        if self.turn is None:
            return self.record
        return replace(self.record, position=max(self.record.position, self.turn.committed))
