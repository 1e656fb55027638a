"""Who leaves a tier next."""

from __future__ import annotations

from statevisor.hypervisor.placement import Candidate, in_turn, select, victims

SOME = (
    Candidate("young", 30.0, False, False),
    Candidate("old", 10.0, False, False),
    Candidate("pinned", 1.0, True, False),
    Candidate("busy", 2.0, False, True),
)


def test_the_least_recently_used_goes_first_and_pinned_or_busy_ones_stay() -> None:
    assert victims(SOME) == ("old", "young")


def test_of_equally_old_ones_the_turn_is_that_of_their_ids() -> None:
    assert list(in_turn([(2.0, "b"), (2.0, "a"), (1.0, "c")])) == ["c", "a", "b"]


def test_an_eviction_takes_no_more_than_asked_for() -> None:
    def pick(**more: float | int | None) -> tuple[str, ...]:
        wanted = {"older_than_s": None, "nbytes": None, "count": None, **more}
        return select(SOME, now=40.0, row_bytes=100, **wanted)  # type: ignore[arg-type]

    assert pick() == ("old", "young")
    assert pick(count=1) == ("old",)
    assert pick(count=0) == ()
    assert pick(nbytes=101) == ("old", "young")
    assert pick(nbytes=100) == ("old",)
    assert pick(older_than_s=20) == ("old",)
