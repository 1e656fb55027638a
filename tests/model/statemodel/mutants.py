"""Negative controls: faults put into a hypervisor on twins, each of which the machine must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from statemodel.world import World

from statevisor.hypervisor.plan import RowResult


def dirty_slot(world: World) -> None:
    """A slot that is given out again is not cleared."""
    world.guest.clear = lambda slot: None


def shared_slot(world: World) -> None:
    """A fork that wakes beside its parent shares the parent's writable bytes."""
    bank = world.guest._bank

    def copy(source: int, targets: Any) -> None:
        for target in targets:
            bank[target] = bank[source]

    world.guest.copy = copy


def stale_frame(world: World) -> None:
    """A rollback leaves the copy in the host tier behind."""
    residency = world.residency
    residents = residency._residents
    discard, drop = residency.discard, residents.drop_frame

    def forget(actor: Any) -> None:
        residents.drop_frame = lambda _: None
        discard(actor)
        residents.drop_frame = drop

    residency.discard = forget


def damaged_frame(world: World) -> None:
    """A frame is loaded without a look at its checksum."""
    frames = world.residency.frames
    frames.view = lambda actor_id: frames._row(frames._held[actor_id].index)


def early_gate(world: World) -> None:
    """Tokens are told before the journal has them."""
    world.visor._gate._open = True


def journal_gap(world: World) -> None:
    """Tokens behind a failed group are journalled all the same."""

    class Forgiving(dict[str, Any]):
        def __contains__(self, key: object) -> bool:
            return False

    memory = world.catalog._catalog
    journal = memory.journal

    async def accept(entries: Any, *, incarnation: int) -> None:
        for entry in entries:
            turn = memory._turns[entry.turn_id]
            memory._turns[entry.turn_id] = replace(turn, position=entry.position)
        await journal(entries, incarnation=incarnation)

    world.visor._gate._failed = Forgiving()
    memory.journal = accept


def same_seed(world: World) -> None:
    """A rollback that is to be re-seeded keeps the seed."""
    rollback = world.catalog.rollback

    async def keep(actor_id: str, origin: Any, *, seed: int | None, guard: Any) -> Any:
        return await rollback(actor_id, origin, seed=None, guard=guard)

    world.catalog.rollback = keep


def lost_rule(world: World) -> None:
    """A mutation is recorded, but the slot goes on with the state before it."""

    async def replace_nothing(actor: Any, row: bytes) -> None:
        actor.imaged = actor.record.position

    world.residency.replace = replace_nothing


def wrong_twin(world: World) -> None:
    """An actor wakes from any neighbour that has absorbed as many tokens."""
    residents = world.residency._residents

    def twin(wanted: tuple[int, int], besides: Any) -> Any:
        for other in residents.actors.values():
            idle = other.power.value == "idle" and other.slot is not None
            if other is not besides and idle and wanted[1] and other.absorbed == wanted[1]:
                return other
        return None

    residents.twin = twin


def greedy_gc(world: World) -> None:
    """A collection frees the bytes of an image that a place still names."""
    sweep = world.catalog.sweep

    async def take(*, grace_us: int) -> Any:
        freed = await sweep(grace_us=grace_us)
        return (*freed, *(await world.catalog.live_images())[:1])

    world.catalog.sweep = take


def cheap_talk(world: World) -> None:
    """A dry run forgets the way to a place that has no image of its own."""
    costs = world.visor._costs
    stored = costs._stored

    async def near(residency: Any, origin: Any, path: Any) -> Any:
        return (await stored(residency, origin, path))._replace(absorbed=origin.position)

    costs._stored = near


def lost_slot(world: World) -> None:
    """A throw-away slot is not given back when its turn ends."""
    admission = world.residency._residents.admission
    give = admission.give

    def keep(slot: int, owner: str) -> None:
        if not owner.startswith("turn_"):
            give(slot, owner)

    admission.give = keep


def unmasked_stop(world: World) -> None:
    """Steps run ahead, and a row is run although the one before it has drawn a stop."""
    guest = world.guest
    guest.steps_ahead = 2
    submit = guest.submit
    ended: set[int] = set()  #: slots whose rows since follow one that drew a stop

    def run_on(plan: Any) -> Any:
        return tuple(run_one(single) for single in plan.resolved())

    def run_one(plan: Any) -> Any:
        unmasked = tuple(replace(row, stops=frozenset()) for row in plan.rows)
        (results,) = submit(replace(plan, rows=unmasked))
        ended.intersection_update(row.slot for row in plan.rows if row.follows)
        over = set(ended)
        ended.update(
            row.slot
            for row, result in zip(plan.rows, results, strict=True)
            if result.token in row.stops
        )
        return tuple(
            RowResult(ran=False) if row.slot in over else result
            for row, result in zip(plan.rows, results, strict=True)
        )

    guest.submit = run_on


MUTANTS: dict[str, Callable[[World], None]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        dirty_slot,
        shared_slot,
        stale_frame,
        damaged_frame,
        early_gate,
        journal_gap,
        same_seed,
        lost_rule,
        wrong_twin,
        lost_slot,
        greedy_gc,
        cheap_talk,
        unmasked_stop,
    )
}
