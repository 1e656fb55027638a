"""Every pair of power and event is decided, and slots are freed exactly once."""

from __future__ import annotations

from itertools import product

import pytest

from statevisor.hypervisor.errors import ActorQuarantined, InvalidTransition
from statevisor.hypervisor.lifecycle import TABLE, Effect, Event, Power, advance

HOLDS_SLOT = {Power.RESUMING, Power.IDLE, Power.RUNNING, Power.HIBERNATING}
LEGAL = {
    Power.HIBERNATED: {Event.RESUME, Event.POISONED, Event.DISCARD, Event.DELETE},
    Power.RESUMING: {Event.LOADED, Event.FAILED, Event.POISONED},
    Power.IDLE: {Event.TURN, Event.HIBERNATE, Event.POISONED, Event.DISCARD, Event.DELETE},
    Power.RUNNING: {Event.TURN_DONE, Event.FAILED, Event.POISONED},
    Power.HIBERNATING: {Event.SAVED, Event.FAILED, Event.POISONED},
    Power.QUARANTINED: {Event.CURED, Event.DELETE},
    Power.DELETED: set(),
}


@pytest.mark.parametrize(("power", "event"), list(product(Power, Event)))
def test_every_pair_is_decided(power: Power, event: Event) -> None:
    if event in LEGAL[power]:
        assert advance(power, event) == TABLE[power, event]
    else:
        wrong = ActorQuarantined if power is Power.QUARANTINED else InvalidTransition
        with pytest.raises(wrong):
            advance(power, event)


@pytest.mark.parametrize(("power", "event"), list(TABLE))
def test_a_slot_is_taken_and_freed_exactly_when_the_power_says_so(
    power: Power, event: Event
) -> None:
    step = TABLE[power, event]
    before, after = power in HOLDS_SLOT, step.power in HOLDS_SLOT
    assert step.effects.count(Effect.TAKE_SLOT) == (not before and after)
    assert step.effects.count(Effect.FREE_SLOT) == (before and not after)


def test_every_power_is_reached_and_every_power_can_end() -> None:
    reach = {Power.HIBERNATED}
    while more := {step.power for (power, _), step in TABLE.items() if power in reach} - reach:
        reach |= more
    assert reach == set(Power)
    for power in set(Power) - {Power.DELETED}:
        ends = {power}
        while more := {step.power for (at, _), step in TABLE.items() if at in ends} - ends:
            ends |= more
        assert Power.DELETED in ends


def test_every_failure_falls_back_to_the_journal() -> None:
    falls = {power: step.power for (power, event), step in TABLE.items() if event is Event.FAILED}
    assert set(falls.values()) == {Power.HIBERNATED}
    assert set(falls) == HOLDS_SLOT - {Power.IDLE}
