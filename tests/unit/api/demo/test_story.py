"""The texts: the pieces add up to the tale, and every child lives another life."""

from __future__ import annotations

from statevisor.api.demo.story import CUTS, TALE, TWISTS, prompt, question


def test_cuts_lie_inside_the_tale_in_order() -> None:
    assert list(CUTS) == sorted(set(CUTS))
    assert 0 < CUTS[0] <= CUTS[-1] < len(TALE)


def test_the_tale_is_ascii_so_that_a_cut_never_splits_a_character() -> None:
    assert TALE.isascii()


def test_there_are_eight_children_with_names_of_their_own() -> None:
    assert len({twist.name for twist in TWISTS}) == 8


def test_a_later_question_stands_on_its_own_line() -> None:
    assert question("Who?", first=True) == "Q: Who?\nA:"
    assert prompt(TWISTS[0]).startswith("\n" + TWISTS[0].told + "\nQ: ")
