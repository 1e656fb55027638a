"""Who holds a slot or a frame of one guest, and what becomes of it when something happens.

The lifecycle says what an event does to an actor's power; its effects on slots and frames are
carried out here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from statevisor.hypervisor import placement
from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.admission import Admission
from statevisor.hypervisor.catalog_port import Catalog, Guard
from statevisor.hypervisor.image_ports import HostFrames
from statevisor.hypervisor.lifecycle import Effect, Event, Power
from statevisor.hypervisor.slots import SlotTable
from statevisor.hypervisor.vocab import Tier

NOT_FINITE = "the state is not finite"


class Residents:
    """The actors in the slots and frames of one guest."""

    def __init__(self, frames: HostFrames, admission: Admission, catalog: Catalog) -> None:
        self.actors: dict[str, Actor] = {}  #: those with a slot or a frame
        self.frames = frames
        self.admission = admission
        self._catalog = catalog
        #: Told of whoever has left a slot.
        self.on_slot_freed: Callable[[Actor], object] = lambda actor: None

    @property
    def slots(self) -> SlotTable:
        """Who holds which slot."""
        return self.admission.slots

    @property
    def pressed(self) -> bool:
        """Whether somebody waits for a slot."""
        return self.admission.waiting > 0

    def tier(self, actor: Actor) -> Tier:
        """Where the newest bytes of an actor are."""
        if actor.slot is not None:
            return Tier.GPU
        return Tier.HOST if self.frames.get(actor.id) is not None else Tier.NVME

    def candidates(self, tier: Tier) -> tuple[placement.Candidate, ...]:
        """The actors of a tier as the placement policy sees them."""
        return tuple(
            placement.Candidate(a.id, a.used, a.record.pinned, a.mailbox.held)
            for a in self.actors.values()
            if self.tier(a) is tier
        )

    def movable(self, tier: Tier) -> Iterator[str]:
        """Who may leave the slots, or the frames, now: least recently used first."""
        slotted = tier is Tier.GPU
        return placement.in_turn(
            [
                (a.used, a.record.id)
                for a in self.actors.values()
                if (a.slot is not None) is slotted and not a.mailbox.held and not a.record.pinned
            ]
        )

    def twin(self, wanted: tuple[int, int], besides: Actor | None) -> Actor | None:
        """An idle actor, not this one, whose slot holds a state (see lineage.same_state).

        A copy of it must be handed to the engine before anything else can be, so that no later
        step of the twin can run first, and nothing can be loaded where it stood: the twin may
        leave its slot before the copy has been made.
        """
        if not wanted[1]:
            return None
        for other in self.actors.values():
            # first what is cheap to see, and true of few
            if other.absorbed != wanted[1] or other.slot is None or other is besides:
                continue
            if other.power is Power.IDLE and other.state == wanted:
                return other
        return None

    def enter(self, actor: Actor, slot: int) -> None:
        """A slot was taken for an actor; its state is not there yet."""
        actor.happen(Event.RESUME)
        actor.slot = slot
        self.actors[actor.id] = actor

    def frame(self, actor: Actor) -> None:
        """A frame was filled for an actor."""
        self.actors[actor.id] = actor

    def apply(self, actor: Actor, event: Event) -> None:
        """Let an event happen to an actor, with its effects. Raises: InvalidTransition."""
        for effect in actor.happen(event):
            if effect is Effect.FREE_SLOT:
                assert actor.slot is not None
                self.admission.give(actor.slot, actor.id)
                actor.slot = None
                self.actors.pop(actor.id, None)
                self.on_slot_freed(actor)
            elif effect is Effect.DROP_FRAME:
                self.drop_frame(actor)
        self.admission.wake()

    async def poison(self, actor: Actor, reason: str) -> None:
        """Quarantine the actor: its slot is freed and it is not scheduled again."""
        self.apply(actor, Event.POISONED)
        guard = Guard(epoch=actor.record.epoch)
        actor.record = await self._catalog.quarantine(actor.id, reason, guard=guard)

    def drop_frame(self, actor: Actor) -> None:
        """Give back the actor's frame, if it has one."""
        if self.frames.get(actor.id) is not None:
            self.frames.drop(actor.id)
        if actor.slot is None:
            self.actors.pop(actor.id, None)

    def check(self) -> None:
        """Raise AssertionError unless slots and actors agree."""
        self.slots.check()
        for actor in self.actors.values():
            if actor.slot is not None:
                assert self.slots.owner(actor.slot) == actor.id
