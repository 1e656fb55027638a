"""Questions about a world and their right answers, read off it, so the newest fact counts."""

from __future__ import annotations

from typing import NamedTuple

from statevisor.guests.demo.words import NAMES, OBJECTS
from statevisor.guests.demo.world import Item, Person, World, article, capital


class Question(NamedTuple):
    """A question about the world, its one right answer and the kind it counts under."""

    kind: str
    text: str
    answer: str


def questions(world: World) -> list[Question]:
    """Every question that has exactly one right answer now."""
    found: list[Question] = []
    for person in world.people:
        found += _about(world, person)
    for item in world.items:
        found += _of(world, item)
    return found


def stranger(world: World) -> Question:
    """A question whose answer the story does not hold."""
    nouns = {item.thing.noun for item in world.items}
    names = {person.name for person in world.people}
    thing = world.rng.choice([t for t in world.rng.sample(OBJECTS, 20) if t.noun not in nouns])
    name = world.rng.choice([n for n in world.rng.sample(NAMES, 20) if n not in names])
    text = world.rng.choice(
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


def _about(world: World, person: Person) -> list[Question]:
    name = person.name
    asked: list[Question] = []
    if person.trade:
        asked.append(Question("who_is", f"Who is {name}?", capital(article(person.trade)) + "."))
    if person.place:
        text = world.rng.choice((f"Where is {name}?", f"Where is {name} now?"))
        asked.append(Question("where_is", text, capital(str(person.place)) + "."))
    finds = [item for item in world.items if item.finder is person]
    if len(finds) == 1 and not finds[0].painted:
        answer = capital(finds[0].thing.one) + "."
        asked.append(Question("what_found", f"What did {name} find?", answer))
    held = [item for item in world.items if item.holder is person]
    if len(held) == 1:
        text = world.rng.choice((f"What does {name} have?", f"What does {name} have now?"))
        asked.append(Question("what_has", text, capital(held[0].thing.one) + "."))
    return asked


def _of(world: World, item: Item) -> list[Question]:
    thing, the = item.thing, world.call(item)
    finder = item.finder.name
    asked = [Question("where_found", f"Where did {finder} find {the}?", capital(f"{item.found}."))]
    asked.append(Question("who_found", f"Who found {the}?", f"{finder}."))
    if thing.coloured:
        text = f"What colour is the {thing.noun}?"
        asked.append(Question("colour", text, capital(thing.modifier) + "."))
    else:
        text = f"What is the {thing.noun} made of?"
        asked.append(Question("material", text, capital(thing.modifier) + "."))
    now = world.rng.choice(("", " now"))
    if item.holder:
        asked.append(Question("who_has", f"Who has {the}{now}?", f"{item.holder.name}."))
        if item.giver:
            text = f"Who gave {the} to {item.holder.name}?"
            asked.append(Question("who_gave", text, f"{item.giver.name}."))
    elif item.lost and item.lost_by:
        asked.append(Question("who_has", f"Who has {the}{now}?", "Nobody."))
        asked.append(Question("where_lost", f"Where is {the}?", capital(f"{item.lost}.")))
        asked.append(Question("who_lost", f"Who lost {the}?", f"{item.lost_by.name}."))
    return asked
