"""Rows for training and exam papers."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from statevisor.guests.demo.corpus import Recipe, batch, batches, exam
from statevisor.guests.demo.documents import ANSWER, BOS, EOS, UNSCORED
from statevisor.guests.demo.words import OBJECTS, held_out

_FOUND = re.compile(r"(?:^|[ \n])([A-Z]\w+) found an? (\w+ \w+)")
_THINGS = {str(thing): thing for thing in OBJECTS}


@pytest.fixture
def recipe() -> Recipe:
    return Recipe(seed=1, rows=4, length=257)


def test_rows_are_full_and_begin_with_a_document(recipe: Recipe) -> None:
    rows = batch(recipe, 0, [])

    assert rows.ids.shape == rows.weights.shape == (4, 257)
    assert (rows.ids[:, 0] == BOS).all()
    assert (rows.weights[rows.ids == BOS] == UNSCORED).all()
    assert (rows.weights == ANSWER).any()


def test_a_batch_depends_on_seed_and_number_only(recipe: Recipe) -> None:
    first, again = batch(recipe, 7, []), batch(recipe, 7, [])

    assert np.array_equal(first.ids, again.ids)
    assert not np.array_equal(first.ids, batch(recipe, 8, []).ids)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_processes_give_the_batches_in_order(recipe: Recipe) -> None:
    source = batches(recipe, 2)
    made = list(islice(source, 5))
    source.close()

    for number, rows in enumerate(made):
        assert np.array_equal(rows.ids, batch(recipe, number, []).ids)


def test_prose_is_mixed_in_only_if_there_is_some(recipe: Recipe, tmp_path: Path) -> None:
    sentence = "It is a truth that a prose sentence of this kind is in no generated story. " * 4
    wide = Recipe(seed=1, rows=40, length=257)

    def text(prose: list[str]) -> bytes:
        ids = batch(wide, 0, prose).ids
        return bytes(ids[ids < 256].astype(np.uint8))

    assert b"It is a truth" in text([sentence] * 3)
    assert b"It is a truth" not in text([])


@pytest.mark.parametrize("wanted", [False, True])
def test_an_exam_has_pairs_of_one_sort(wanted: bool) -> None:
    paper = exam(1, 40, 1024, held_out=wanted, plain=True)
    pairs = []
    for row in paper.ids:
        text = bytes(row[row < 256].astype(np.uint8)).decode()
        pairs += [(name, _THINGS[thing]) for name, thing in _FOUND.findall(text)]

    assert len(pairs) > 40
    assert {held_out(name, thing) for name, thing in pairs} == {wanted}


def test_an_answer_span_ends_with_the_end_token() -> None:
    paper = exam(1, 20, 1024, held_out=True, plain=False)

    spans = [(row, span) for row, answers in enumerate(paper.answers) for span in answers]
    assert len(spans) > 20
    assert all(paper.ids[row, span.stop - 1] == EOS for row, span in spans)
    assert all(paper.ids[row, span.start] == ord(" ") for row, span in spans)
