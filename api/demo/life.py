"""The story up to the crash: one actor lives it, its twin is spared every adventure."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

from statevisor.api.cli.client import Client, path
from statevisor.api.cli.top import totals
from statevisor.api.demo import story
from statevisor.api.demo.crowd import among, mean_rows, together
from statevisor.api.demo.person import Answer, Person
from statevisor.api.demo.report import Report
from statevisor.api.demo.screen import Screen

SEED = 20260727
#: An answer to a question is short; a model that finds no end is cut here.
ASKED: dict[str, Any] = {"max_tokens": 48}
#: Settings under which every answer is drawn, not only picked.
DRAWN: dict[str, Any] = {"temperature": 0.8, "ignore_eos": True}
_NEIGHBOURS = 7
_DREAM = 32  #: tokens of a dream


class Life:
    """Alice and her twin on one server; both are given the same texts in the same order."""

    def __init__(self, client: Client, report: Report, screen: Screen) -> None:
        self.client = client
        self.report = report
        self.screen = screen
        self.snapshot = ""  #: handle of Alice before her children
        self.after_snapshot: Answer | None = None  #: what she said next
        self.digest_after: str = ""  #: the state that left her in
        self.children: list[Person] = []

    def decide(self, name: str, detail: str, **facts: bool) -> None:
        """Record a verdict and show it; facts are named in words with underscores."""
        self.report.decide(name, {k.replace("_", " "): v for k, v in facts.items()}, detail)
        self.screen.verdict(name, self.report.checks[name])

    def ask(self, text: str, *, first: bool = False) -> tuple[Answer, Answer]:
        """Ask Alice and her twin the same."""
        asked = story.question(text, first)
        mine, hers = together(
            lambda: self.alice.answer(asked, **ASKED), lambda: self.twin.answer(asked, **ASKED)
        )
        self.screen.spoke("alice", text, mine.text)
        return mine, hers

    def begin(self) -> None:
        """Tell Alice a tale, her twin the same in pieces."""
        self.screen.act(
            "Alice is told a tale. Her twin hears it in pieces, single letters among them."
        )
        self.screen.told(story.TALE)
        with self.report.timed("create"):
            self.alice = Person.create(self.client, "alice", prompt=story.TALE, seed=SEED)
        cuts = [0, *story.CUTS, len(story.TALE)]
        pieces = [story.TALE[start:stop] for start, stop in pairwise(cuts)]
        self.twin = Person.create(self.client, "twin", prompt=pieces[0], seed=SEED)
        for piece in pieces[1:]:
            self.twin.append(piece)
        same_digest = self.alice.digest() == self.twin.digest()
        mine, hers = self.ask(story.WHO_FOUND, first=True)
        self.decide(
            "split_invariance",
            f"1 call against {len(pieces)} calls, {mine.position} tokens",
            equal_state=same_digest,
            equal_answer=mine.same(hers),
            equal_transcript=self.alice.tokens() == self.twin.tokens(),
        )

    def read_own_words(self) -> None:
        """Let a third actor read what Alice heard and said."""
        told = self.alice.tokens()
        reader = Person.reading(self.client, "reader", told, SEED)
        self.decide(
            "prefill_equals_decode",
            f"{len(told)} tokens read in one call",
            equal_transcript=reader.tokens() == told,
            equal_state=reader.digest() == self.alice.digest(),
        )
        reader.remove()

    def crowd(self) -> None:
        """Let one copy of Alice dream alone, another among neighbours."""
        self.screen.act("Alice dreams, alone and in a crowd.")
        lone, packed = self.alice.fork(["lone", "packed"], seeds=[SEED, SEED])
        quiet = lone.answer(max_tokens=_DREAM, **DRAWN)
        others = self.alice.fork([f"neighbour-{n}" for n in range(_NEIGHBOURS)])
        before = totals(self.client.text("/metrics"))
        loud = among(others, lambda: packed.answer(max_tokens=_DREAM, **DRAWN), DRAWN)
        after = totals(self.client.text("/metrics"))
        rows = mean_rows(before, after)
        self.screen.spoke("alice, dreaming", "", quiet.text)
        self.decide(
            "batch_invariance",
            f"{_DREAM} drawn tokens, {rows:.1f} rows a step with neighbours",
            equal_answer=quiet.same(loud),
            equal_state=lone.digest() == packed.digest(),
            neighbours_in_the_batch=rows > 2,
        )
        for person in (lone, packed, *others):
            person.remove()

    def fork(self) -> None:
        """Eight children, each told another ending, all at once."""
        self.screen.act(
            "A snapshot, and eight children. Each lives another ending, all at the same time."
        )
        with self.report.timed("snapshot"):
            self.snapshot = self.alice.snapshot("before-the-children")
        told = self.alice.tokens()
        names = [twist.name for twist in story.TWISTS]
        with self.report.timed("fork_8"):
            self.children = self.alice.fork(names, at=self.snapshot)
        pairs = list(zip(self.children, story.TWISTS, strict=True))
        born = {child.digest() for child in self.children}
        with self.report.timed("eight_endings"):
            endings = together(*(partial(_live, *pair) for pair in pairs))
        for twist, ending in zip(story.TWISTS, endings, strict=True):
            asked = f"{twist.told} {twist.asked or '…'}".strip()
            self.screen.spoke(twist.name, asked, ending.text)
        mine, hers = self.ask(story.WHAT_FOUND)
        self.after_snapshot, self.digest_after = mine, self.alice.digest()
        alone = [self._lives_alone(told, *pairs[index]) for index in (0, -1)]
        different = len({ending.token_ids for ending in endings})
        self.decide(
            "fork_isolation",
            f"{different} different endings of 8, 2 of them lived again alone",
            all_born_in_one_state=len(born) == 1,
            parent_answers_as_twin=mine.same(hers),
            parent_in_the_twins_state=self.digest_after == self.twin.digest(),
            different_endings=different > 1,
            same_ending_alone=alone[0].same(endings[0]) and alone[1].same(endings[-1]),
        )

    def _lives_alone(self, told: tuple[int, ...], child: Person, twist: story.Twist) -> Answer:
        """One child's life again, by an actor that shares nothing with anybody."""
        hermit = Person.reading(self.client, "hermit", told, child.info()["seed"])
        ending = _live(hermit, twist)
        hermit.remove()
        return ending

    def change(self) -> None:
        """Take one child's memory away, and prove that this is what was done."""
        self.screen.act("One more child loses its memory (rule: zero).")
        clear, dull = self.alice.fork(["clear", "dull"], at=self.snapshot)
        asked = story.question(story.WHAT_FOUND)
        version = dull.mutate("zero")
        remembered, forgotten = together(
            lambda: clear.answer(asked, **ASKED), lambda: dull.answer(asked, **ASKED)
        )
        self.screen.spoke("clear", story.WHAT_FOUND, remembered.text)
        self.screen.spoke("dull", story.WHAT_FOUND, forgotten.text)
        found = self.client.post(path("versions", version, "verify"))
        later = self.client.post(path("versions", dull.info()["head"], "verify"))
        blamed = self.client.get("/v1/lineage/blame", {"v": dull.info()["head"], "layer": 0})
        self.decide(
            "mutation_proved",
            f"{version} derived again",
            another_answer=remembered.token_ids != forgotten.token_ids,
            unchanged_child_as_parent=self.after_snapshot is not None
            and remembered.same(self.after_snapshot),
            derivable=bool(found["ok"]),
            derivable_after_it_spoke=bool(later["ok"]),
            blamed=blamed is not None and blamed["handle"] == version,
        )

    def sleep(self) -> None:
        """Send Alice to host memory, then to disk; her twin stays awake."""
        self.screen.act("Alice sleeps, first in host memory, then on disk. Her twin stays awake.")
        plan = (("host", story.WHERE), ("nvme", story.WHO_HAS))
        for (tier, text), evening in zip(plan, story.EVENINGS, strict=True):
            self.alice.append(evening)
            self.twin.append(evening)
            with self.report.timed(f"hibernate_{tier}"):
                asleep = self.alice.hibernate(tier)
            with self.report.timed(f"resume_{tier}"):
                awake = self.alice.resume()
            mine, hers = self.ask(text)
            self.decide(
                f"hibernate_{tier}_exact",
                f"{asleep['status']} in {asleep['tier']}, then {awake['status']}",
                was_in_that_tier=(asleep["status"], asleep["tier"]) == ("hibernated", tier),
                came_back=awake["tier"] == "gpu",
                equal_answer=mine.same(hers),
                equal_state=self.alice.digest() == self.twin.digest(),
            )


def _live(child: Person, twist: story.Twist) -> Answer:
    """One child's ending."""
    if twist.asked:
        return child.answer(story.prompt(twist), **ASKED)
    return child.answer(story.prompt(twist), max_tokens=_DREAM, **DRAWN)
