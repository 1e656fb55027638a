"""What is true in a story: people, their things, and what happens to them.

Every event changes the world and returns the sentence that tells it; questions and answers are
read off the world, so the newest fact always counts. A world takes either only pairs of name and
object that are held out, or only pairs that are not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

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


class Question(NamedTuple):
    """A question about the world, its one right answer and the kind it counts under."""

    kind: str
    text: str
    answer: str


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
                f"{person.name} was {_a(person.trade)}.",
                f"{person.name} is {_a(person.trade)}.",
                f"There was once {_a(person.trade)} called {person.name}.",
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
                f"{_cap(str(place))}, {name} found {thing.one}.",
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

    # -- questions -------------------------------------------------------------------------------
    def questions(self) -> list[Question]:
        """Every question that has exactly one right answer now."""
        found: list[Question] = []
        for person in self.people:
            found += self._about(person)
        for item in self.items:
            found += self._of(item)
        return found

    def stranger(self) -> Question:
        """A question whose answer the story does not hold."""
        nouns = {item.thing.noun for item in self.items}
        names = {person.name for person in self.people}
        thing = self.rng.choice([t for t in self.rng.sample(OBJECTS, 20) if t.noun not in nouns])
        name = self.rng.choice([n for n in self.rng.sample(NAMES, 20) if n not in names])
        text = self.rng.choice(
            (
                f"Who found the {thing}?",
                f"Who has the {thing}?",
                f"What colour is the {thing.noun}?",
                f"What is the {thing.noun} made of?",
                f"Where is {name}?",
                f"What did {name} find?",
                f"Who is {name}?",
            )
        )
        return Question("unknown", text, "I do not know.")

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

    def _about(self, person: Person) -> list[Question]:
        name = person.name
        asked: list[Question] = []
        if person.trade:
            asked.append(Question("who_is", f"Who is {name}?", _cap(_a(person.trade)) + "."))
        if person.place:
            text = self.rng.choice((f"Where is {name}?", f"Where is {name} now?"))
            asked.append(Question("where_is", text, _cap(str(person.place)) + "."))
        finds = [item for item in self.items if item.finder is person]
        if len(finds) == 1 and not finds[0].painted:
            answer = _cap(finds[0].thing.one) + "."
            asked.append(Question("what_found", f"What did {name} find?", answer))
        held = [item for item in self.items if item.holder is person]
        if len(held) == 1:
            text = self.rng.choice((f"What does {name} have?", f"What does {name} have now?"))
            asked.append(Question("what_has", text, _cap(held[0].thing.one) + "."))
        return asked

    def _of(self, item: Item) -> list[Question]:
        thing, the = item.thing, self.call(item)
        finder = item.finder.name
        asked = [Question("where_found", f"Where did {finder} find {the}?", _cap(f"{item.found}."))]
        asked.append(Question("who_found", f"Who found {the}?", f"{finder}."))
        if thing.coloured:
            text = f"What colour is the {thing.noun}?"
            asked.append(Question("colour", text, _cap(thing.modifier) + "."))
        else:
            text = f"What is the {thing.noun} made of?"
            asked.append(Question("material", text, _cap(thing.modifier) + "."))
        now = self.rng.choice(("", " now"))
        if item.holder:
            asked.append(Question("who_has", f"Who has {the}{now}?", f"{item.holder.name}."))
            if item.giver:
                text = f"Who gave {the} to {item.holder.name}?"
                asked.append(Question("who_gave", text, f"{item.giver.name}."))
        elif item.lost and item.lost_by:
            asked.append(Question("who_has", f"Who has {the}{now}?", "Nobody."))
            asked.append(Question("where_lost", f"Where is {the}?", _cap(f"{item.lost}.")))
            asked.append(Question("who_lost", f"Who lost {the}?", f"{item.lost_by.name}."))
        return asked

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


def _a(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _cap(text: str) -> str:
    return text[0].upper() + text[1:]
