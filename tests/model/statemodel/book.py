"""The whole catalog as a model: actors that stand on histories, and versions that name them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from statemodel.oracle import Event, Oracle, branch, empty, transcript

from statevisor.hypervisor.ports import Mutation


@dataclass(eq=False, slots=True)
class Version:
    """`name@seq`."""

    actor: Actor
    seq: int
    op: str
    event: Event
    parents: tuple[Version, ...]
    hidden: bool = False

    @property
    def handle(self) -> str:
        return f"{self.actor.shown}@{self.seq}"

    @property
    def key(self) -> str:
        """A handle that no other actor's name can take."""
        return f"{self.actor.id}@{self.seq}"


@dataclass(eq=False, slots=True)
class Actor:
    """One actor as it must be."""

    book: Book
    id: str
    name: str
    event: Event
    seed: int
    parent: Version | None = None
    head: int = 0
    generation: int = 1
    pinned: bool = False
    quarantined: bool = False
    deleted: bool = False
    versions: list[Version] = field(default_factory=list)

    @property
    def shown(self) -> str:
        """The name in its handles: its id, once it is deleted."""
        return self.id if self.deleted else self.name

    @property
    def position(self) -> int:
        return self.event.position

    @property
    def visible(self) -> list[Version]:
        return [one for one in self.versions if not one.hidden]

    def tokens(self) -> list[int]:
        return [token for token, _ in transcript(self.event)]

    def runs(self) -> list[tuple[int, int, str]]:
        """Position, count and kind of its runs of tokens."""
        runs, at = [], self.event.base
        for generated, group in groupby(transcript(self.event), key=lambda pair: pair[1]):
            count = len(list(group))
            runs.append((at, count, "generated" if generated else "prompt"))
            at += count
        return runs


class Book:
    """Every actor there was, by id."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.actors: dict[str, Actor] = {}
        self.tags: dict[str, Version] = {}  #: those of deleted actors are free

    @property
    def living(self) -> list[Actor]:
        return [one for one in self.actors.values() if not one.deleted]

    @property
    def names(self) -> set[str]:
        return {one.name for one in self.living}

    @property
    def versions(self) -> list[Version]:
        """All that can be named, those of deleted actors too."""
        return [one for actor in self.actors.values() for one in actor.versions]

    def needed(self, actor: Actor) -> bool:
        """Whether another's history goes through this one's, or a version of another is above."""
        others = [one for one in self.versions if one.actor is not actor]
        return any(parent.actor is actor for one in others for parent in one.parents) or any(
            event.owner is actor for one in others for event in one.event.back()
        )

    def forget(self, actor: Actor) -> None:
        """A deleted actor is no more, not even for those who know its id."""
        del self.actors[actor.id]

    # -- where things are ------------------------------------------------------------------------
    def find(self, actor: Actor, position: int) -> Event | None:
        """The last event at a position of an actor's history; None if it is not known there."""
        if not actor.event.base <= position <= actor.position:
            return None
        for one in actor.event.back():
            if one.position == position:
                # the tokens that an import brings are known, the states before it are not
                unknown = one.kind == "known" or (one.kind == "empty" and position > 0)
                return None if unknown else one
        return None

    def reachable(self, actor: Actor, version: Version) -> bool:
        """Whether a version is of this actor's making or on the way to where it stands."""
        return version.actor is actor or any(one is version.event for one in actor.event.back())

    # -- what happens ----------------------------------------------------------------------------
    def create(self, key: str, name: str, prompt: Sequence[int], seed: int) -> Actor:
        root = empty(None)
        actor = self._insert(key, name, root, seed)
        root.owner = actor
        actor.event = self.oracle.say(root, prompt, actor)
        self.add(actor, "create", actor.event, ())
        return actor

    def fork(
        self, key: str, name: str, origin: Event, at: Version, seed: int, prompt: Sequence[int]
    ) -> Actor:
        start = branch(origin, None)
        actor = self._insert(key, name, start, seed)
        start.owner = actor
        actor.parent = at
        made = self.add(actor, "fork", start, (at,))
        if prompt:
            actor.event = self.oracle.say(start, prompt, actor)
            self.add(actor, "turn", actor.event, (made,))
        return actor

    def bring(
        self, key: str, name: str, seed: int, row: bytes, position: int, pending: Sequence[int]
    ) -> Actor:
        """An import."""
        base = position - len(pending)
        below = empty(None)
        below.position = below.base = base
        actor = self._insert(key, name, below, seed)
        below.owner = actor
        at: Event = below
        for token in pending:
            at = Event("known", at, at.position + 1, base, row, token, actor, token=token)
        actor.event = Event(
            "import", at, position, base, row, pending[-1] if pending else None, actor
        )
        self.add(actor, "import", actor.event, ())
        return actor

    def turn(self, actor: Actor, prompt: Sequence[int], generated: Sequence[int]) -> Version:
        """A turn that was opened and closed: two changes."""
        event = self.oracle.say(actor.event, prompt, actor)
        actor.event = self.oracle.say(event, generated, actor, generated=True)
        actor.generation += 2
        return self.add(actor, "turn", actor.event, self.latest(actor.event))

    def snapshot(self, actor: Actor) -> Version:
        return self.add(actor, "snapshot", actor.event, self.before(actor.event))

    def mutate(self, actor: Actor, mutation: Mutation, others: Sequence[Version]) -> Version:
        row = self.oracle.mutate(mutation, [actor.event.row, *(v.event.row for v in others)])
        here = actor.event
        main = self.latest(here)
        actor.event = Event("rule", here, here.position, here.base, row, here.pending, actor)
        actor.generation += 1
        return self.add(actor, "mutate", actor.event, (*main, *others))

    def rollback(self, actor: Actor, origin: Event, at: Version, seed: int) -> Version:
        actor.event = branch(origin, actor)
        actor.seed = seed
        actor.generation += 1
        actor.quarantined = False
        return self.add(actor, "rollback", actor.event, (at,))

    # -- lineage ---------------------------------------------------------------------------------
    def anchor(self, origin: Event) -> Version:
        """The version that a branch at a bare position begins at; a hidden one if need be."""
        for hidden in (False, True):
            here: Event | None = origin
            while here is not None and here.position == origin.position:
                found = [one for one in here.versions if one.hidden is hidden]
                if found:
                    return found[-1]
                here = here.parent if here.kind == "branch" else None
        owner = origin.owner
        return self.add(owner, "snapshot", origin, self.before(origin), hidden=True)

    def latest(self, event: Event) -> tuple[Version, ...]:
        """The newest visible version at or before an event."""
        for one in event.back():
            found = [version for version in one.versions if not version.hidden]
            if found:
                return (found[-1],)
        return ()

    def before(self, event: Event) -> tuple[Version, ...]:
        """The same; for a place before the first version, the one whose making computed it."""
        return self.latest(event) or self._maker(event)

    def _maker(self, event: Event) -> tuple[Version, ...]:
        root = next(one for one in event.back() if one.parent is None)
        made = [
            version
            for version in self.versions
            if not version.hidden
            and version.event.position >= event.position
            and _same_segment(version.event, root)
        ]
        return (min(made, key=lambda one: (one.event.position, one.seq)),) if made else ()

    def add(
        self,
        actor: Actor,
        op: str,
        event: Event,
        parents: Iterable[Version],
        *,
        hidden: bool = False,
    ) -> Version:
        made = Version(actor, len(actor.versions), op, event, tuple(parents), hidden)
        actor.versions.append(made)
        event.versions.append(made)
        if op != "snapshot":
            actor.head = made.seq
        return made

    def _insert(self, key: str, name: str, event: Event, seed: int) -> Actor:
        actor = self.actors[key] = Actor(self, key, name, event, seed)
        return actor


def _same_segment(event: Event, root: Event) -> bool:
    """Whether only tokens lie between a root and an event."""
    for one in event.back():
        if one is root:
            return True
        if one.kind != "token":
            return False
    return False
