"""Measure the embedded guest on this machine: exact greedy answers on held-out pairs.

    python -m statevisor.guests.demo.evaluate --documents 200 --reload

Two exams: plain stories (who found what where), and stories that go on and change.

Every answer is generated token by token through the guest's own step, up to its end token, on a
copy of the state after the question. With `--reload` the state is written out as bytes, its slot
is cleared and it is read back before every answer; the marks must be the same.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from statevisor.guests import GuestConfig, build_guest
from statevisor.guests.demo.corpus import exam_document
from statevisor.guests.demo.documents import EOS, Encoded, Span
from statevisor.hypervisor.plan import Row, StepPlan
from statevisor.hypervisor.ports import Guest
from statevisor.hypervisor.sampling import Draw, SamplerSettings

_GREEDY = SamplerSettings()
_LONGEST = 64  #: tokens of an answer; none in the exam is longer


class Asked(NamedTuple):
    """One question: its kind, the answer that is right, and the one that was given."""

    kind: str
    wanted: bytes
    given: bytes

    @property
    def right(self) -> bool:
        return self.wanted == self.given


@dataclass(slots=True, kw_only=True)
class Examiner:
    """Reads documents side by side, one a slot, and answers their questions in other slots."""

    guest: Guest
    reload: bool = False

    def examine(self, documents: Sequence[Encoded]) -> list[Asked]:
        """Answers of all documents; uses and clears the guest's slots."""
        width = self.guest.slots // 2
        asked: list[Asked] = []
        for first in range(0, len(documents), width):
            asked += self._together(documents[first : first + width])
        return asked

    def _together(self, documents: Sequence[Encoded]) -> list[Asked]:
        """Documents in slots 1.. up to their n-th answers, which are drawn in the upper half."""
        width = len(documents)
        done = [0] * width
        for slot in range(1, width + 1):
            self.guest.clear(slot)
        asked: list[Asked] = []
        for number in range(max((len(d.answers) for d in documents), default=0)):
            due = [place for place, d in enumerate(documents) if number < len(d.answers)]
            # The byte before the answer stays pending: feeding it gives the answer's first byte.
            self._feed(
                {
                    place + 1: documents[place].ids[
                        done[place] : documents[place].answers[number].start - 1
                    ]
                    for place in due
                }
            )
            for place in due:
                done[place] = documents[place].answers[number].start - 1
                if self.reload:
                    self._write_and_read(place + 1)
                self.guest.copy(place + 1, [place + 1 + self.guest.slots // 2])
            spans = [documents[place].answers[number] for place in due]
            asked += self._answers([documents[place] for place in due], spans, due)
        return asked

    def _answers(
        self, documents: Sequence[Encoded], spans: Sequence[Span], places: Sequence[int]
    ) -> list[Asked]:
        upper = self.guest.slots // 2 + 1
        given: dict[int, list[int]] = {place: [] for place in places}
        pending = {
            place: document.ids[span.start - 1]
            for place, document, span in zip(places, documents, spans, strict=True)
        }
        for position in range(_LONGEST):
            draw = Draw(seed=0, position=position, settings=_GREEDY)
            rows = tuple(
                Row(slot=upper + place, tokens=(token,), draw=draw)
                for place, token in pending.items()
            )
            if not rows:
                break
            for place, result in zip(
                list(pending), self.guest.step(StepPlan(rows=rows)), strict=True
            ):
                assert result.token is not None
                given[place].append(result.token)
                pending[place] = result.token
                if result.token == EOS:
                    del pending[place]
        return [
            Asked(
                span.kind,
                _text(document.ids[span.start : span.stop]),
                _text(given[place]),
            )
            for place, document, span in zip(places, documents, spans, strict=True)
        ]

    def _feed(self, tokens: dict[int, list[int]]) -> None:
        """Tokens of several slots, in steps of what the guest can carry."""
        share = max(1, self.guest.step_tokens // max(1, len(tokens)))
        for first in range(0, max(map(len, tokens.values()), default=0), share):
            rows = tuple(
                Row(slot=slot, tokens=tuple(ids[first : first + share]))
                for slot, ids in tokens.items()
                if first < len(ids)
            )
            self.guest.step(StepPlan(rows=rows))

    def _write_and_read(self, slot: int) -> None:
        row = bytearray(self.guest.layout.row_bytes)
        self.guest.save(slot, memoryview(row))
        self.guest.clear(slot)
        self.guest.load(slot, memoryview(row))


def documents(seed: int, count: int, *, held_out: bool, plain: bool) -> list[Encoded]:
    """Exam documents that have questions, the same for the same seed."""
    rng = random.Random(f"evaluate/{seed}/{held_out}/{plain}")
    found: list[Encoded] = []
    while len(found) < count:
        document = exam_document(rng, held_out=held_out, plain=plain)
        if document.answers:
            found.append(document)
    return found


def table(asked: Sequence[Asked]) -> str:
    """A line a kind and one for all."""
    of = Counter(one.kind for one in asked)
    right = Counter(one.kind for one in asked if one.right)
    lines = [f"{kind:12} {right[kind]:5} of {of[kind]:5}" for kind in sorted(of)]
    total = sum(right.values())
    return "\n".join([*lines, f"{'all':12} {total:5} of {len(asked):5} = {total / len(asked):.2%}"])


def _text(tokens: Sequence[int]) -> bytes:
    """Bytes of an answer; the end token is written as a zero byte, so that it is compared too."""
    return bytes(0 if token == EOS else min(token, 255) for token in tokens)


def main() -> int:
    """Print the marks; fails if they change when states are written and read back."""
    parser = argparse.ArgumentParser(description="measure the embedded guest")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reload", action="store_true", help="also through saved states")
    parser.add_argument("--trained", action="store_true", help="pairs of the kind trained on")
    options = parser.parse_args()
    guest = build_guest(GuestConfig(model=options.model, device="cpu", slots=64), verify=False)
    held_out, failed = not options.trained, False
    for plain in (True, False):
        paper = documents(options.seed, options.documents, held_out=held_out, plain=plain)
        asked = Examiner(guest=guest).examine(paper)
        sys.stdout.write(f"{'plain' if plain else 'changing'} stories\n{table(asked)}\n")
        if options.reload:
            same = Examiner(guest=guest, reload=True).examine(paper) == asked
            sys.stdout.write(f"through saved states: {'the same' if same else 'DIFFERENT'}\n")
            failed = failed or not same
        sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
