"""What is made at once follows from the first of it, and is nobody else's."""

from __future__ import annotations

from statevisor.hypervisor.ids import (
    ALIKE,
    Ids,
    actor_id,
    name_at,
    name_parts,
    nth_seed,
    own_name,
    parts,
)
from statevisor.hypervisor.vocab import MAX_SEED, check_name


class Clock:
    """A clock that goes where it is told."""

    def __init__(self, now_us: int) -> None:
        self.now = now_us

    def now_us(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return 0.0


def test_later_ids_sort_behind_earlier_ones_whatever_the_clock_does():
    clock = Clock(1_700_000_000_000_000)
    ids = Ids(clock)
    made = [ids.new("act"), *ids.actors(5), ids.new("act")]
    clock.now -= 10**9
    made += [*ids.actors(2000), ids.new("act")]
    clock.now += 2 * 10**9
    made += ids.actors(3)
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_an_id_is_its_time_and_its_salt():
    for time, salt in ((0, 0), (2**60 - 1, 2**40 - 1), (1_700_000_000_000_000, 12345)):
        assert parts(actor_id(time, salt)) == (time, salt)
        assert name_parts(own_name(actor_id(time, salt))) == (time % ALIKE, salt)
        assert name_at(time, salt) == own_name(actor_id(time, salt))
    for key in ("act_1", "turn_" + "0" * 20, "act_" + "0" * 19 + "u", "act_" + "0" * 21):
        assert parts(key) is None
    for name in ("actor-1", "actor-00000000000", "ACTOR-0000000000", "actor-000000000l"):
        assert name_parts(name) is None


def test_ids_made_at_once_follow_from_the_first_and_have_names_of_their_own():
    made = Ids(Clock(5)).actors(3 * ALIKE)
    known = [parts(key) for key in made]
    assert all(known)
    times = [one[0] for one in known if one]
    assert times == list(range(times[0], times[0] + len(made)))
    assert len({one[1] for one in known if one}) == 3
    names = [own_name(key) for key in made]
    assert len(set(names)) == len(names)
    assert all(check_name(name) == name for name in names)


def test_seeds_of_many_are_theirs_alone():
    first = Ids(Clock(5)).seed()
    seeds = [nth_seed(first, n) for n in range(10_000)]
    assert seeds[0] == first
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < MAX_SEED for seed in seeds)
    # of those of another first seed, the next one, none is among them
    assert not {nth_seed(first + 1, n) for n in range(1, 10_000)} & set(seeds)
    # what a folder holds depends on them
    assert [nth_seed(7, n) for n in range(3)] == [7, 3344595609062871, 3444597933762076]
    # every bit is set about as often as not
    for bit in range(53):
        assert 0.4 < sum(seed >> bit & 1 for seed in seeds) / len(seeds) < 0.6
