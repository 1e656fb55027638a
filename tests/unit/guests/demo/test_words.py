"""The lists that stories draw from, and the pairs kept out of training."""

from __future__ import annotations

import itertools

from statevisor.guests.demo.words import (
    COLOURS,
    MATERIALS,
    NAMES,
    NOUNS,
    OBJECTS,
    PLACES,
    Thing,
    held_out,
)


def test_there_are_too_many_names_and_objects_to_learn_their_pairs() -> None:
    assert len(NAMES) >= 500
    assert len(OBJECTS) >= 500
    assert len(NAMES) * len(OBJECTS) > 1_000_000


def test_every_word_is_listed_once() -> None:
    for words in (NAMES, NOUNS, PLACES, OBJECTS, COLOURS + MATERIALS):
        assert len(set(words)) == len(words)
    assert len({name.lower() for name in NAMES}) == len(NAMES)


def test_names_are_plain_words() -> None:
    assert all(name.isascii() and name.isalpha() and name.istitle() for name in NAMES)


def test_a_tenth_of_the_pairs_is_held_out() -> None:
    pairs = list(itertools.islice(itertools.product(NAMES, OBJECTS[::97]), 10_000))

    share = sum(held_out(name, thing) for name, thing in pairs) / len(pairs)

    assert 0.09 < share < 0.11


def test_the_same_pairs_are_held_out_on_every_machine() -> None:
    hat, ring = Thing("silver", "hat"), Thing("amber", "ring")

    assert [name for name in NAMES[:40] if held_out(name, hat)] == _SILVER_HAT
    assert [name for name in NAMES[:40] if held_out(name, ring)] == _AMBER_RING


def test_every_name_and_object_is_both_trained_and_held_out() -> None:
    for name in NAMES[::50]:
        assert len({held_out(name, thing) for thing in OBJECTS}) == 2
    for thing in OBJECTS[::100]:
        assert len({held_out(name, thing) for name in NAMES}) == 2


def test_articles_follow_the_sound() -> None:
    assert Thing("amber", "ring").one == "an amber ring"
    assert Thing("silver", "hat").one == "a silver hat"


_SILVER_HAT = ["Ada", "Amos", "Dag", "Dana"]
_AMBER_RING = ["Conrad", "Daisy"]
