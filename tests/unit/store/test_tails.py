from __future__ import annotations

import random

import pytest

from statevisor.hypervisor.catalog_port import JournalEntry
from statevisor.hypervisor.errors import Conflict, StatevisorError
from statevisor.store.tails import Tail, Tails


def tail(name: str, segment: int, start: int = 0) -> Tail:
    return Tail(turn_id=name, actor_id=f"act_{name}", segment=segment, start=start, journal_after=0)


def entry(name: str, segment: int, position: int, *tokens: int) -> JournalEntry:
    return JournalEntry(turn_id=name, segment=segment, position=position, tokens=tokens)


def seen(tails: Tails, segment: int) -> list[int] | None:
    found = tails.seen(segment)
    return None if found is None else list(found[1])


def test_readers_see_nothing_before_it_is_published():
    tails = Tails()
    tails.open(tail("a", 1, 5))
    assert seen(tails, 1) is None
    tails.publish()
    assert tails.seen(1) == (5, tails.seen(1)[1])
    assert seen(tails, 1) == []
    tails.extend([entry("a", 1, 5, 7, 8)], 1)
    assert seen(tails, 1) == []
    assert tails.ends() == {"a": 5}
    tails.publish()
    assert seen(tails, 1) == [7, 8]
    assert tails.ends() == {"a": 7}
    tails.close(tails.get("a"))
    assert seen(tails, 1) == [7, 8]
    tails.publish()
    assert seen(tails, 1) is None
    assert tails.ends() == {}


def test_a_group_that_does_not_fit_is_taken_back_whole():
    tails = Tails()
    tails.open(tail("a", 1))
    tails.open(tail("b", 2))
    tails.publish()
    for bad in (entry("b", 2, 1, 9), entry("b", 3, 0, 9), entry("c", 2, 0, 9)):
        mark = tails.mark()
        with pytest.raises((Conflict, StatevisorError)):
            tails.extend([entry("a", 1, 0, 1), entry("a", 1, 1, 2), bad], tails.next_group())
        tails.undo(mark)
        assert tails.get("a").end == 0
        assert tails.get("a").since == 0
        assert tails.last_group == 0


def test_what_a_reader_was_given_does_not_change():
    tails = Tails()
    tails.open(tail("a", 1))
    tails.extend([entry("a", 1, 0, 1)], 1)
    tails.publish()
    before = tails.seen(1)[1]
    ends = tails.ends()
    tails.extend([entry("a", 1, 1, 2)], 2)
    tails.publish()
    assert (list(before), dict(ends)) == ([1], {"a": 1})


def state(tails: Tails) -> object:
    return tails.last_group, {
        one.turn_id: (list(one.tokens), one.folded, one.since, one.segment) for one in tails.all()
    }


@pytest.mark.parametrize("seed", range(20))
def test_undo_brings_back_whatever_was_there(seed):
    dice = random.Random(seed)
    tails = Tails()
    marks: list[tuple[int, object]] = []
    for number in range(200):
        opened = list(tails.all())
        kind = dice.choice(
            ("open", "close", "extend", "fold", "mark", "undo", "publish", "replace")
        )
        if kind == "open":
            tails.open(tail(f"t{number}", number))
        elif kind == "close" and opened:
            tails.close(dice.choice(opened))
        elif kind == "extend" and opened:
            some = dice.sample(opened, dice.randint(1, len(opened)))
            group = tails.next_group()
            tails.extend([entry(one.turn_id, one.segment, one.end, number) for one in some], group)
        elif kind == "fold" and opened:
            tails.fold(dice.choice(opened))
        elif kind == "replace" and dice.random() < 0.1:
            tails.replace([tail(f"r{number}", number)], 77)
        elif kind == "publish" and dice.random() < 0.3:
            tails.publish()
            marks.clear()
            assert tails.ends() == {one.turn_id: one.end for one in opened}
        elif kind == "mark":
            marks.append((tails.mark(), state(tails)))
        elif kind == "undo" and marks:
            chosen = dice.randrange(len(marks))
            mark, before = marks[chosen]
            tails.undo(mark)
            assert state(tails) == before
            del marks[chosen:]
