"""What is true in a story: people, their things, and what happens to them.

Every event changes the world and returns the sentence that tells it. A world takes either only
pairs of name and object that are held out, or only pairs that are not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from statevisor.guests.demo.words import (
    ADJECTIVES,
    COLOURS,
    CREATURES,
    NAMES,
    OBJECTS,
    PLACES,
    Place,
    Thing,
    held_out,
)

_TRIES = 400


@dataclass(slots=True, kw_only=True)
class Person:
    """Someone in the story."""

    name: str
    trade: str | None = None  #: `sleepy dragon`
    place: Place | None = None


@dataclass(slots=True, kw_only=True)
class Item:
    """An object in the story; its noun occurs once in a world."""

    thing: Thing
    finder: Person
    found: Place
    holder: Person | None
    giver: Person | None = None  #: of the newest gift
    lost_by: Person | None = None
    lost: Place | None = None
    painted: bool = False


@dataclass(slots=True, kw_only=True)
class World:
    """The people and things of one story."""

    rng: random.Random
    held_out: bool = False
    people: list[Person] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)

    # -- events: each returns its sentence, or None if nothing suitable can happen ---------------
    def introduce(self, person: Person) -> str:
        """Say what someone is."""
        pick = self.rng.choice
        person.trade = f"{pick(ADJECTIVES)} {pick(CREATURES)}"
        return pick(
            (
                f"{person.name} was {article(person.trade)}.",
                f"{person.name} is {article(person.trade)}.",
                f"There was once {article(person.trade)} called {person.name}.",
            )
        )

    def go(self, person: Person) -> str:
        """Move someone."""
        places = [place for place in self.rng.sample(PLACES, 3) if place != person.place]
        place = person.place = places[0]
        name = person.name
        return self.rng.choice(
            (
                f"{name} went to {place.noun}.",
                f"{name} walked to {place.noun}.",
                f"Later {name} ran to {place.noun}.",
                f"Then {name} went to {place.noun}.",
                f"{name} is {place} now.",
            )
        )

    def find(self, person: Person) -> str | None:
        """Let someone find a new object."""
        thing = self._new_thing(person)
        if thing is None:
            return None
        place = self.rng.choice(PLACES)
        self.items.append(Item(thing=thing, finder=person, found=place, holder=person))
        person.place = place
        name = person.name
        return self.rng.choice(
            (
                f"{name} found {thing.one} {place}.",
                f"{name} found {thing.one} {place}.",
                f"One day {name} found {thing.one} {place}.",
                f"{capital(str(place))}, {name} found {thing.one}.",
                f"Then {name} found {thing.one} {place}.",
            )
        )

    def give(self) -> str | None:
        """Let someone give an object away."""
        held = [item for item in self.items if item.holder]
        if not held:
            return None
        item = self.rng.choice(held)
        giver = item.holder
        assert giver is not None
        receiver = self._receiver(item, giver)
        if receiver is None:
            return None
        what = self.call(item)
        item.giver, item.holder = giver, receiver
        return self.rng.choice(
            (
                f"{giver.name} gave {what} to {receiver.name}.",
                f"{giver.name} gave {what} to {receiver.name}.",
                f"Later {giver.name} gave {what} to {receiver.name}.",
                f"{receiver.name} got {what} from {giver.name}.",
            )
        )

    def paint(self) -> str | None:
        """Let a holder change the colour of an object."""
        items = [item for item in self.items if item.holder and item.thing.coloured]
        if not items:
            return None
        item = self.rng.choice(items)
        holder = item.holder
        assert holder is not None
        for colour in self.rng.sample(COLOURS, len(COLOURS)):
            thing = Thing(colour, item.thing.noun)
            if thing != item.thing and self._allowed(holder.name, thing):
                what = self.call(item)
                item.thing, item.painted = thing, True
                return self.rng.choice(
                    (
                        f"{holder.name} painted {what} {colour}.",
                        f"Then {holder.name} painted {what} {colour}.",
                    )
                )
        return None

    def lose(self) -> str | None:
        """Let a holder lose an object somewhere."""
        held = [item for item in self.items if item.holder]
        if not held:
            return None
        item = self.rng.choice(held)
        loser = item.holder
        assert loser is not None
        what = self.call(item)
        item.lost_by, item.holder = loser, None
        item.lost = loser.place = self.rng.choice(PLACES)
        return self.rng.choice(
            (
                f"{loser.name} lost {what} {item.lost}.",
                f"Later {loser.name} lost {what} {item.lost}.",
            )
        )

    def call(self, item: Item) -> str:
        """`the silver hat` or `the hat`."""
        return f"the {item.thing}" if self.rng.random() < 0.6 else f"the {item.thing.noun}"

    def person(self) -> Person:
        """A new person with a name not yet used."""
        used = {person.name for person in self.people}
        person = Person(
            name=self.rng.choice([n for n in self.rng.sample(NAMES, 9) if n not in used])
        )
        self.people.append(person)
        return person

    def _allowed(self, name: str, thing: Thing) -> bool:
        return held_out(name, thing) == self.held_out

    def _new_thing(self, person: Person) -> Thing | None:
        used = {item.thing.noun for item in self.items}
        for _ in range(_TRIES):
            thing = self.rng.choice(OBJECTS)
            if thing.noun not in used and self._allowed(person.name, thing):
                return thing
        return None

    def _receiver(self, item: Item, giver: Person) -> Person | None:
        known = [p for p in self.people if p is not giver and self._allowed(p.name, item.thing)]
        if known and self.rng.random() < 0.7:
            return self.rng.choice(known)
        used = {person.name for person in self.people}
        for _ in range(_TRIES):
            name = self.rng.choice(NAMES)
            if name not in used and self._allowed(name, item.thing):
                self.people.append(Person(name=name))
                return self.people[-1]
        return None


def article(words: str) -> str:
    """The words behind `a` or `an`."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def capital(text: str) -> str:
    """The text with its first letter large."""
    return text[0].upper() + text[1:]
