"""Marks an exam on the training machine, through the model that was trained."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from statevisor.guests.demo.corpus import Exam


def examine(model: Any, paper: Exam, rows: int = 64) -> dict[str, dict[str, int]]:
    """Exact greedy answers per kind of question.

    A greedy answer is exact if and only if, given the right bytes so far, every next byte (and the
    end token) has the highest score; so one pass over the documents decides all their answers.
    """
    import torch

    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    model.eval()
    for first in range(0, len(paper.answers), rows):
        ids = torch.from_numpy(paper.ids[first : first + rows].astype(np.int64)).to(model.device)
        with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16):
            best = model(input_ids=ids[:, :-1], use_cache=False).logits.argmax(-1)
        hits = (best == ids[:, 1:]).cpu().numpy()
        for row, answers in enumerate(paper.answers[first : first + rows]):
            for answer in answers:
                asked[answer.kind] += 1
                right[answer.kind] += bool(hits[row, answer.start - 1 : answer.stop - 1].all())
    model.train()
    return {kind: {"right": right[kind], "asked": asked[kind]} for kind in sorted(asked)}


def summary(marks: dict[str, dict[str, int]]) -> str:
    """A line a kind and the total."""
    asked = sum(mark["asked"] for mark in marks.values())
    right = sum(mark["right"] for mark in marks.values())
    lines = [f"{kind:12} {mark['right']}/{mark['asked']}" for kind, mark in marks.items()]
    return "\n".join([*lines, f"{'all':12} {right}/{asked} = {right / max(1, asked):.4f}"])
