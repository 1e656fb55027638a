"""Stories whose facts live only in the state, told as a tale or in a chat. Seeded, stdlib only.

The format is fixed. A tale is sentences, then questions one a line:

    Finn was a sleepy dragon. Finn found a silver hat in the old mill.
    Q: Who found the silver hat?
    A: Finn.<end>
    Q: ...

A chat is turns with an empty line between them:

    User: Finn found a silver hat in the old mill.

    Assistant: I see.<end>

    User: Who found the silver hat?

    Assistant: Finn.<end>

<end> is the token 257; it may be missing from the history (a caller who cuts at a line end), but
the model is never taught to leave it out. The story may go on after questions, and its facts may
change; the newest counts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

from statevisor.guests.demo.documents import ANSWER, PLAIN, UNSCORED, Piece
from statevisor.guests.demo.questions import Question, questions, stranger
from statevisor.guests.demo.smalltalk import TELL, Exchange, smalltalk
from statevisor.guests.demo.world import World

_OPENINGS = ("Once upon a time, long ago.", "This is a short story.", "It was a cold morning.",
             "Listen to this.", "A new day began.")  # fmt: skip
_FILLERS = ("It rained all day.", "The sun was warm.", "Nobody said a word.", "The wind was cold.",
            "Everyone was tired.", "It was getting dark.", "A dog barked.", "That was a surprise.",
            "Time went by.", "The birds sang.")  # fmt: skip
_NODS = ("I see.", "I see.", "I will remember that.", "Go on.", "Noted.")


#: Something that happens; it returns its sentence, or None if it cannot happen.
_Event = Callable[[], str | None]


def tale(rng: random.Random, *, held_out: bool = False, plain: bool = False) -> list[Piece]:
    """A story with question lines; a plain one is short and nothing in it changes."""
    world = World(rng=rng, held_out=held_out)
    gap = rng.choice((" ", " ", "\n"))
    pieces: list[Piece] = []
    for number in range(1 if plain else rng.choice((1, 1, 2, 2, 3))):
        sentences = _finds(world) if plain else _chapter(world, first=number == 0)
        pieces.append(Piece(gap.join(sentences) + "\n"))
        for question in _ask(world):
            pieces.append(Piece(f"Q: {question.text}\nA:"))
            pieces += _answer(rng, question, "\n")
    return pieces


def chat(rng: random.Random, *, held_out: bool = False, plain: bool = False) -> list[Piece]:
    """A story told in turns, with small talk around it; a plain one as in `tale`."""
    world = World(rng=rng, held_out=held_out)
    pieces: list[Piece] = []
    talk = (exchange for exchange in smalltalk(rng) if exchange.user != TELL)
    if rng.random() < 0.3:
        pieces += _turn(rng, next(talk))
    for number in range(1 if plain else rng.choice((1, 2, 2, 3))):
        told = _finds(world) if plain else _chapter(world, first=number == 0)
        cut = len(told) if rng.random() < 0.5 else max(1, len(told) // 2)
        for part in filter(None, (told[:cut], told[cut:])):
            pieces += _turn(rng, Exchange(" ".join(part), rng.choice(_NODS), ""))
        for question in _ask(world):
            pieces += _turn(rng, Exchange(question.text, question.answer, question.kind))
        if rng.random() < 0.15:
            pieces += _turn(rng, next(talk))
    return pieces


def small_chat(rng: random.Random) -> list[Piece]:
    """A chat without a story: greetings, what the guest is, what the user said of themselves."""
    talk = smalltalk(rng)
    pieces: list[Piece] = []
    for _ in range(rng.randint(2, 6)):
        exchange = next(talk)
        if exchange.user == TELL:
            exchange = Exchange(TELL, " ".join(_chapter(World(rng=rng), first=True)), "")
        pieces += _turn(rng, exchange)
    return pieces


def _chapter(world: World, *, first: bool) -> list[str]:
    """Sentences of what happens next; facts of different people are mixed."""
    rng = world.rng
    threads: list[list[_Event]] = []
    newcomers = rng.choice((1, 2, 2, 3, 3, 4)) if first else rng.choice((0, 0, 1))
    for _ in range(newcomers):
        person = world.person()
        thread: list[_Event] = []
        if rng.random() < 0.55:
            thread.append(partial(world.introduce, person))
        if rng.random() < 0.3:
            thread.append(partial(world.go, person))
        for _ in range(rng.choice((1, 1, 1, 1, 2))):
            thread.append(partial(world.find, person))
        threads.append(thread)
    changes: list[_Event] = [
        world.give, world.give, world.paint, world.lose, lambda: world.go(rng.choice(world.people))
    ]  # fmt: skip
    late = [
        rng.choice(changes) for _ in range(rng.choice((0, 1, 1, 2)) if first else rng.randint(1, 3))
    ]
    sentences = [rng.choice(_OPENINGS)] if first and rng.random() < 0.3 else []
    for event in (*_interleave(rng, threads), *late):
        sentence = event()
        if sentence:
            sentences.append(sentence)
        if rng.random() < 0.07:
            sentences.append(rng.choice(_FILLERS))
    return sentences or [rng.choice(_FILLERS)]


def _finds(world: World) -> list[str]:
    """Sentences of one to three people of whom each finds one thing; nothing changes after."""
    rng = world.rng
    threads: list[list[_Event]] = []
    for _ in range(rng.choice((1, 2, 2, 3))):
        person = world.person()
        thread: list[_Event] = []
        if rng.random() < 0.5:
            thread.append(partial(world.introduce, person))
        thread.append(partial(world.find, person))
        threads.append(thread)
    sentences = [rng.choice(_OPENINGS)] if rng.random() < 0.3 else []
    return sentences + [told for event in _interleave(rng, threads) if (told := event())]


def _interleave(rng: random.Random, threads: list[list[_Event]]) -> Iterator[_Event]:
    """Merge the threads at random, each in its own order."""
    threads = [thread for thread in threads if thread]
    while threads:
        thread = rng.choice(threads)
        yield thread.pop(0)
        threads = [thread for thread in threads if thread]


def _ask(world: World) -> list[Question]:
    """Some questions; every kind that can be asked is equally likely, however many it has."""
    rng = world.rng
    kinds: dict[str, list[Question]] = {}
    for question in questions(world):
        kinds.setdefault(question.kind, []).append(question)
    asked: list[Question] = []
    for _ in range(rng.randint(2, 5)):
        if not kinds or rng.random() < 0.06:
            asked.append(stranger(world))
            continue
        kind = rng.choice(tuple(kinds))
        asked.append(kinds[kind].pop(rng.randrange(len(kinds[kind]))))
        if not kinds[kind]:
            del kinds[kind]
    return asked


def _turn(rng: random.Random, exchange: Exchange) -> list[Piece]:
    pieces = [Piece(f"User: {exchange.user}\n\nAssistant:")]
    return pieces + _answer(rng, Question(exchange.kind, exchange.user, exchange.answer), "\n\n")


def _answer(rng: random.Random, question: Question, gap: str) -> list[Piece]:
    """The answer, its end token and what separates it from the next text."""
    weight = ANSWER if question.kind else PLAIN
    kind = question.kind
    if rng.random() < 0.15:
        # A history without the end token: the answer counts, its missing end does not.
        return [Piece(f" {question.answer}", weight), Piece(gap, UNSCORED)]
    after = gap if rng.random() < 0.85 else ""
    return [Piece(f" {question.answer}", weight, end=True, kind=kind), Piece(after, UNSCORED)]
