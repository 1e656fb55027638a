"""The texts of the demonstration, in the form the embedded guest was taught."""

from __future__ import annotations

from typing import NamedTuple

TALE = (
    "Finn was a sleepy dragon. Mia was a brave baker. "
    "Finn found a silver hat in the old mill. Mia found a red lamp on the beach. "
    "Finn gave the silver hat to Mia.\n"
)
#: Where the tale is cut when it is told in pieces; single bytes among them.
CUTS = (1, 2, 3, 10, 11, 64, 100, 101)


def question(text: str, first: bool = False) -> str:
    """A question in the guest's form; it follows an answer unless it is the first."""
    return f"{'' if first else chr(10)}Q: {text}\nA:"


WHO_FOUND = "Who found the silver hat?"
WHAT_FOUND = "What did Mia find?"
WHERE = "Where did Finn find the silver hat?"
WHO_HAS = "Who has the silver hat?"
#: Told before each sleep, so that there is something new to be kept.
EVENINGS = ("\nTime went by.", "\nIt was getting dark.")


class Twist(NamedTuple):
    """What one child is told and asked; without a question it tells on by itself."""

    name: str
    told: str
    asked: str | None


TWISTS = (
    Twist("gift", "Mia gave the silver hat to Nora.", "Who has the silver hat?"),
    Twist("loss", "Mia lost the silver hat in the forest.", "Where is the silver hat?"),
    Twist("paint", "Mia painted the hat blue.", "What colour is the hat?"),
    Twist("lamp", "Mia gave the red lamp to Leo.", "Who has the red lamp?"),
    Twist("walk", "Mia went to the harbour.", "Where is Mia?"),
    Twist("same", "", "Who has the silver hat?"),
    Twist("dream-1", "", None),
    Twist("dream-2", "", None),
)


def prompt(twist: Twist) -> str:
    """The text that a child is sent."""
    told = f"\n{twist.told}" if twist.told else ""
    return told + (question(twist.asked) if twist.asked else "\nThen ")
