"""Documents packed into rows of one length, in parallel processes, the same for the same seed."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from statevisor.guests.demo.documents import BOS, Encoded, Piece, Span, encode
from statevisor.guests.demo.prose import excerpt
from statevisor.guests.demo.stories import chat, small_chat, tale

#: Documents of a kind among 100. Prose is about a tenth of the bytes: more costs memory for facts.
SHARES = {"plain": 50, "tale": 22, "chat": 14, "small": 6, "prose": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of ids; the weight of an id is what its prediction counts."""

    ids: np.ndarray  #: [rows, length] int16
    weights: np.ndarray  #: [rows, length] uint8


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a batch is drawn from."""

    seed: int
    rows: int
    length: int  #: ids of a row; one more than what the model is given
    prose: Path | None = None


def batches(recipe: Recipe, processes: int) -> Iterator[Rows]:
    """Endless batches in the order of their numbers, made ahead by `processes` processes."""
    context = multiprocessing.get_context("fork")
    with context.Pool(processes, _open, (recipe,)) as pool:
        waiting = [pool.apply_async(_make, (number,)) for number in range(4 * processes)]
        number = len(waiting)
        while True:
            rows: Rows = waiting.pop(0).get()
            waiting.append(pool.apply_async(_make, (number,)))
            number += 1
            yield rows


def batch(recipe: Recipe, number: int, prose: list[str]) -> Rows:
    """One batch: each row begins with a document and is filled up; the last one is cut."""
    rng = random.Random(f"{recipe.seed}/{number}")
    ids = np.full((recipe.rows, recipe.length), BOS, dtype=np.int16)
    weights = np.zeros((recipe.rows, recipe.length), dtype=np.uint8)
    for row in range(recipe.rows):
        filled = 0
        while filled < recipe.length:
            document = encode(_document(rng, prose))
            take = min(len(document.ids), recipe.length - filled)
            ids[row, filled : filled + take] = document.ids[:take]
            weights[row, filled : filled + take] = document.weights[:take]
            filled += take
    return Rows(ids=ids, weights=weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exam:
    """Rows with one document each, and where their answers lie."""

    ids: np.ndarray  #: [rows, length] int16, filled up with BOS
    answers: list[list[Span]]


def exam(seed: int, rows: int, length: int, *, held_out: bool, plain: bool) -> Exam:
    """Documents whose pairs are all held out, or all of the kind trained on.

    plain: who found what where, asked after the story; else stories that go on and change.
    """
    rng = random.Random(f"exam/{seed}/{held_out}")
    ids = np.full((rows, length), BOS, dtype=np.int16)
    answers: list[list[Span]] = []
    while len(answers) < rows:
        document = exam_document(rng, held_out=held_out, plain=plain)
        if len(document.ids) <= length:
            ids[len(answers), : len(document.ids)] = document.ids
            answers.append(document.answers)
    return Exam(ids=ids, answers=answers)


def exam_document(rng: random.Random, *, held_out: bool, plain: bool) -> Encoded:
    """A tale, a chat about one, or a chat about the user, with its answers."""
    if plain:
        return encode(rng.choice((tale, chat))(rng, held_out=held_out, plain=True))
    match rng.choice(("tale", "tale", "chat", "chat", "small")):
        case "tale":
            return encode(tale(rng, held_out=held_out))
        case "chat":
            return encode(chat(rng, held_out=held_out))
        case _:
            return encode(small_chat(rng))


def _document(rng: random.Random, prose: list[str]) -> list[Piece]:
    shares = SHARES if prose else {**SHARES, "prose": 0}
    match rng.choices(tuple(shares), tuple(shares.values()))[0]:
        case "plain":
            return rng.choice((tale, chat))(rng, plain=True)
        case "tale":
            return tale(rng)
        case "chat":
            return chat(rng)
        case "small":
            return small_chat(rng)
        case _:
            return excerpt(rng, prose)


# A worker process holds its recipe and the prose, so that neither is sent with every number.
_worker: tuple[Recipe, list[str]] | None = None


def _open(recipe: Recipe) -> None:
    global _worker
    _worker = recipe, recipe.prose.read_text().splitlines() if recipe.prose else []


def _make(number: int) -> Rows:
    assert _worker is not None
    return batch(_worker[0], number, _worker[1])
