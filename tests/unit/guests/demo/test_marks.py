"""Marks count exact answers, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from statevisor.guests.demo.corpus import Exam, exam
from statevisor.guests.demo.documents import VOCABULARY
from statevisor.guests.demo.marks import examine, summary


class Perfect:
    """Knows the paper: scores the id that follows highest, but for one row."""

    device = torch.device("cpu")

    def __init__(self, paper: Exam, *, wrong_row: int) -> None:
        self.rows = torch.from_numpy(paper.ids.astype("int64"))
        self.wrong = wrong_row

    def eval(self) -> None:
        """As of a module."""

    def train(self) -> None:
        """As of a module."""

    def __call__(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        logits = torch.zeros(*input_ids.shape, VOCABULARY)
        for row, ids in enumerate(input_ids):
            known = (self.rows[:, :-1] == ids).all(1).nonzero()[0, 0]
            if known != self.wrong:
                logits[row].scatter_(1, self.rows[known, 1:, None], 1.0)
        return SimpleNamespace(logits=logits)


def test_an_exam_counts_exact_answers_only() -> None:
    paper = exam(2, 6, 1024, held_out=True, plain=True)
    asked = sum(map(len, paper.answers))
    wrong = next(row for row, answers in enumerate(paper.answers) if answers)

    def right(model: Perfect) -> tuple[int, int]:
        marks = examine(model, paper).values()
        return sum(mark["right"] for mark in marks), sum(mark["asked"] for mark in marks)

    assert right(Perfect(paper, wrong_row=-1)) == (asked, asked)
    assert right(Perfect(paper, wrong_row=wrong)) == (asked - len(paper.answers[wrong]), asked)


def test_the_summary_has_a_line_a_kind_and_the_total() -> None:
    marks = {"colour": {"right": 3, "asked": 4}, "who": {"right": 1, "asked": 1}}

    assert [line.split() for line in summary(marks).splitlines()] == [
        ["colour", "3/4"],
        ["who", "1/1"],
        ["all", "4/5", "=", "0.8000"],
    ]
