"""What an actor may do next: one table of powers and events.

                 resume               loaded              turn
    HIBERNATED ----------> RESUMING ----------> IDLE ----------> RUNNING
        ^  ^                  |                 |  ^                |
        |  |  failed          |       hibernate |  |   turn_done    |
        |  +------------------+                 v  +----------------+
        |          saved, failed            HIBERNATING             |
        +---------------------------------------+                   | failed
        +-----------------------------------------------------------+
    RESUMING, RUNNING, HIBERNATING, IDLE, HIBERNATED --poisoned--> QUARANTINED --cured--> HIBERNATED
    IDLE, HIBERNATED --discard--> HIBERNATED      (the state is no longer the actor's: rollback)
    HIBERNATED, IDLE, QUARANTINED --delete--> DELETED

Every fall-back goes to HIBERNATED, that is, to the journal's truth, and frees the slot exactly
once. Operations of one actor are serial, so a delete never meets RUNNING: it cancels first and
waits. A missing pair is illegal. No other file assigns a power.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from statevisor.hypervisor.errors import ActorQuarantined, InvalidTransition


class Power(StrEnum):
    """What an actor is doing."""

    HIBERNATED = "hibernated"  # in a lower tier; holds no slot
    RESUMING = "resuming"  # holds a slot that is being filled
    IDLE = "idle"  # holds a slot with all but the pending token absorbed
    RUNNING = "running"  # a turn steps it
    HIBERNATING = "hibernating"  # its slot is being copied out
    QUARANTINED = "quarantined"  # not finite or damaged; never scheduled
    DELETED = "deleted"


class Event(Enum):
    """What happened to an actor."""

    RESUME = auto()
    LOADED = auto()
    TURN = auto()
    TURN_DONE = auto()
    HIBERNATE = auto()
    SAVED = auto()
    FAILED = auto()
    POISONED = auto()
    CURED = auto()
    DISCARD = auto()
    DELETE = auto()


class Effect(Enum):
    """What the residency has to do, in order."""

    TAKE_SLOT = auto()
    FREE_SLOT = auto()
    DROP_FRAME = auto()  # forget the copy in the host tier, if there is one


@dataclass(frozen=True, slots=True)
class Step:
    """The new power and the effects of one transition."""

    power: Power
    effects: tuple[Effect, ...] = ()


_FALL_BACK = Step(Power.HIBERNATED, (Effect.FREE_SLOT,))
_POISON = Step(Power.QUARANTINED, (Effect.FREE_SLOT, Effect.DROP_FRAME))

TABLE: dict[tuple[Power, Event], Step] = {
    (Power.HIBERNATED, Event.RESUME): Step(Power.RESUMING, (Effect.TAKE_SLOT,)),
    (Power.RESUMING, Event.LOADED): Step(Power.IDLE, (Effect.DROP_FRAME,)),
    (Power.IDLE, Event.TURN): Step(Power.RUNNING),
    (Power.RUNNING, Event.TURN_DONE): Step(Power.IDLE),
    (Power.IDLE, Event.HIBERNATE): Step(Power.HIBERNATING),
    (Power.HIBERNATING, Event.SAVED): Step(Power.HIBERNATED, (Effect.FREE_SLOT,)),
    (Power.RESUMING, Event.FAILED): _FALL_BACK,
    (Power.RUNNING, Event.FAILED): _FALL_BACK,
    (Power.HIBERNATING, Event.FAILED): _FALL_BACK,
    (Power.RESUMING, Event.POISONED): _POISON,
    (Power.RUNNING, Event.POISONED): _POISON,
    (Power.HIBERNATING, Event.POISONED): _POISON,
    (Power.IDLE, Event.POISONED): _POISON,
    (Power.HIBERNATED, Event.POISONED): Step(Power.QUARANTINED, (Effect.DROP_FRAME,)),
    (Power.QUARANTINED, Event.CURED): Step(Power.HIBERNATED),
    (Power.IDLE, Event.DISCARD): Step(Power.HIBERNATED, (Effect.FREE_SLOT,)),
    (Power.HIBERNATED, Event.DISCARD): Step(Power.HIBERNATED, (Effect.DROP_FRAME,)),
    (Power.HIBERNATED, Event.DELETE): Step(Power.DELETED, (Effect.DROP_FRAME,)),
    (Power.IDLE, Event.DELETE): Step(Power.DELETED, (Effect.FREE_SLOT,)),
    (Power.QUARANTINED, Event.DELETE): Step(Power.DELETED),
}


def advance(power: Power, event: Event) -> Step:
    """The transition of one pair. Raises: InvalidTransition, ActorQuarantined."""
    step = TABLE.get((power, event))
    if step is not None:
        return step
    if power is Power.QUARANTINED:
        raise ActorQuarantined(f"a quarantined actor takes no {event.name.lower()}")
    raise InvalidTransition(f"{event.name.lower()} is not possible while {power.value}")
