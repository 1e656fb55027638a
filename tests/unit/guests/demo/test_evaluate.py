"""The embedded guest answers from its state, on pairs it was never trained on."""

from __future__ import annotations

import pytest

from statevisor.guests import GuestConfig, build_guest
from statevisor.guests.demo.evaluate import Asked, Examiner, documents, table
from statevisor.hypervisor.ports import Guest


@pytest.fixture(scope="module")
def guest() -> Guest:
    config = GuestConfig(model="demo", device="cpu", slots=32, threads=1)
    return build_guest(config, verify=False)


def share(asked: list[Asked]) -> float:
    return sum(one.right for one in asked) / len(asked)


def test_held_out_pairs_are_answered_exactly(guest: Guest) -> None:
    asked = Examiner(guest=guest).examine(documents(7, 14, held_out=True, plain=True))

    assert len(asked) >= 40
    assert share(asked) >= 0.9, table(asked)


def test_a_saved_and_loaded_state_gives_the_same_answers(guest: Guest) -> None:
    paper = documents(8, 3, held_out=True, plain=True)

    asked = Examiner(guest=guest).examine(paper)

    assert len(asked) >= 6
    assert Examiner(guest=guest, reload=True).examine(paper) == asked


def test_a_guest_without_its_state_knows_nothing(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Examiner, "_write_and_read", lambda self, slot: self.guest.clear(slot))
    paper = documents(7, 3, held_out=True, plain=True)

    asked = Examiner(guest=guest, reload=True).examine(paper)

    known = [one for one in asked if one.kind != "unknown"]
    assert share(known) < 0.3


def test_the_table_counts_by_kind() -> None:
    asked = [Asked("a", b"x", b"x"), Asked("a", b"x", b"y"), Asked("b", b"x", b"x")]

    assert [line.split() for line in table(asked).splitlines()] == [
        ["a", "1", "of", "2"],
        ["b", "1", "of", "1"],
        ["all", "2", "of", "3", "=", "66.67%"],
    ]
