"""Which places share a state."""

from __future__ import annotations

import pytest

from statevisor.hypervisor.errors import InvalidRequest
from statevisor.hypervisor.history import shared_tokens
from statevisor.hypervisor.lineage import covers, origin, place, same_state
from statevisor.hypervisor.records import SegmentRecord


def segment(id: int, parent: int | None, position: int, *, rooted: bool = False) -> SegmentRecord:
    return SegmentRecord(
        id=id, actor_id="act", parent=parent, position=position, rooted=rooted, depth=0
    )


ROOT = segment(1, None, 0)
FORK = segment(2, 1, 10)
MUTATED = segment(3, 1, 10, rooted=True)


def test_a_fork_rests_at_its_parents_state() -> None:
    assert same_state((ROOT, FORK), 9) == same_state((ROOT,), 9)


def test_a_fork_that_went_on_shares_nothing() -> None:
    assert same_state((ROOT, FORK), 10) != same_state((ROOT,), 10)


def test_a_mutation_does_not_share_the_state_it_began_from() -> None:
    assert same_state((ROOT, MUTATED), 9) != same_state((ROOT,), 9)


def test_a_mutation_of_the_empty_state_is_not_the_empty_state() -> None:
    empty = segment(4, 1, 0, rooted=True)
    assert same_state((ROOT, empty), 0) != same_state((ROOT,), 0)


def test_a_bare_position_means_the_last_event_there() -> None:
    assert place((ROOT, MUTATED), 10) == (3, 10)
    assert place((ROOT, MUTATED), 9) == (1, 9)


@pytest.mark.parametrize("position", [-1, 13])
def test_a_position_outside_the_history_is_refused(position: int) -> None:
    with pytest.raises(InvalidRequest):
        origin((ROOT, FORK), 12, position)


def test_transcripts_part_where_their_segments_do() -> None:
    other = segment(5, 1, 7)
    assert shared_tokens((ROOT, FORK), 20, (ROOT, other), 20) == 7
    assert shared_tokens((ROOT, FORK), 20, (ROOT,), 8) == 8
    assert shared_tokens((ROOT,), 20, (segment(9, None, 0),), 20) == 0


def test_an_ancestors_segment_counts_up_to_where_the_path_left_it() -> None:
    assert covers((ROOT, FORK), 1, 10)
    assert not covers((ROOT, FORK), 1, 11)
    assert covers((ROOT, FORK), 2, 99)
    assert not covers((ROOT, FORK), 3, 10)
