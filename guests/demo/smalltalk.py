"""Small talk: greetings, questions about the guest, and what a user says of themselves."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from statevisor.guests.demo.words import COLOURS, NAMES, PETS, PLACES


class Exchange(NamedTuple):
    """What the user says, what is answered, and the kind it is measured under ("" for none)."""

    user: str
    answer: str
    kind: str


TELL = "Tell me a story."
_WHAT = (
    "I remember what you tell me. Tell me a short story, then ask me who found something, "
    "where it was, or what colour it is."
)
_WHO = "I am a very small model. All I know about you is in my state."
_STATE = "A small block of numbers that holds everything I was told."

_FIXED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Hello!", "Hello.", "Hello", "Hi!", "Hi", "hi", "hello", "Hey.", "Hi there!"),
     "Hello! Tell me a story and ask me about it."),
    (("Good morning.", "Good morning!"), "Good morning! Tell me a story and ask me about it."),
    (("Good evening.", "Good evening!"), "Good evening! Tell me a story and ask me about it."),
    (("How are you?", "How are you today?", "how are you?"), "I am well, thank you."),
    (("What can you do?", "what can you do?", "Help.", "help", "What do you do?",
      "How can you help me?"), _WHAT),
    (("Who are you?", "What are you?", "who are you?", "Tell me about yourself."), _WHO),
    (("What is your name?", "Do you have a name?"), "I have no name. You can give me one."),
    (("Are you a person?", "Are you human?"), "No, I am a very small model."),
    (("What is a state?", "What is your state?"), _STATE),
    (("What is a snapshot?",), "A copy of my state that never changes."),
    (("What is a fork?",), "A second me that knows what I know now and then goes its own way."),
    (("Thank you.", "Thanks!", "Thanks.", "thanks"), "You are welcome."),
    (("Goodbye.", "Bye!", "Bye.", "Good night.", "bye"), "Goodbye! I will be here."),
    (("Do you remember me?", "Do you know me?"), "I remember what you told me. Ask me."),
    (("Yes.", "No.", "Okay.", "OK", "Good.", "Great!", "Nice."), "What would you like to know?"),
    (("How big are you?", "How many parameters do you have?"), "About seven million parameters."),
    (("What is two plus two?", "What is the capital of France?", "What is the weather like?",
      "What time is it?", "Can you write code?", "What is love?", "How do I cook rice?",
      "Who wrote this book?", "What is the news?"),
     "I do not know. I only know what you tell me."),
)  # fmt: skip


def smalltalk(rng: random.Random) -> Iterator[Exchange]:
    """Endless exchanges of one conversation; what the user said is asked later."""
    known: dict[str, str] = {}
    while True:
        if rng.random() < 0.45:
            users, answer = rng.choice(_FIXED)
            yield Exchange(rng.choice(users), answer, "")
        elif rng.random() < 0.08:
            yield Exchange(TELL, "", "")  # the caller tells it
        elif known and rng.random() < 0.6:
            yield rng.choice(_recalls(known))
        else:
            yield _tell(rng, known)


def _tell(rng: random.Random, known: dict[str, str]) -> Exchange:
    """The user says something of themselves; a later word replaces an earlier one."""
    match rng.choice(("name", "colour", "home", "pet")):
        case "name":
            name = known["name"] = rng.choice(NAMES)
            text = rng.choice((f"My name is {name}.", f"I am {name}.", f"Hello, I am {name}."))
            return Exchange(text, f"Hello, {name}.", "greet")
        case "colour":
            colour = known["colour"] = rng.choice(COLOURS)
            return Exchange(f"My favourite colour is {colour}.", "I will remember that.", "")
        case "home":
            place = known["home"] = str(rng.choice(PLACES))
            return Exchange(f"I live {place}.", "I will remember that.", "")
        case _:
            animal, name = rng.choice(PETS), rng.choice(NAMES)
            known["pet"], known["animal"] = name, animal
            return Exchange(f"I have a {animal} called {name}.", "I will remember that.", "")


def _recalls(known: dict[str, str]) -> list[Exchange]:
    recalls: list[Exchange] = []
    if name := known.get("name"):
        recalls.append(Exchange("What is my name?", f"{name}.", "user_name"))
    if colour := known.get("colour"):
        answer = colour.capitalize() + "."
        recalls.append(Exchange("What is my favourite colour?", answer, "user_colour"))
    if home := known.get("home"):
        recalls.append(Exchange("Where do I live?", home.capitalize() + ".", "user_home"))
    if pet := known.get("pet"):
        animal = known["animal"]
        recalls.append(Exchange(f"What is my {animal} called?", f"{pet}.", "user_pet"))
    return recalls
