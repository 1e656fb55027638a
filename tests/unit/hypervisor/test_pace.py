"""A step is given as seldom at once as keeps guest and event loop busy."""

from __future__ import annotations

import itertools

from statevisor.hypervisor.pace import MOST, Pace


def balanced(step_s: float, take_s: float, per_step_s: float, takes: int = 300) -> Pace:
    """The pace behind many takes of an event loop that needs so much for each, and for a step."""
    pace, now_s, read_s = Pace(), 0.0, [0.0]  # when plans were read; the first of them is taken
    for _ in range(takes):
        while len(read_s) == 1 or read_s[-1] + pace.times * step_s <= now_s:
            read_s.append(read_s[-1] + pace.times * step_s)
            now_s = max(now_s, read_s[1])
        for before, at in itertools.pairwise(read_s):
            pace.loop((now_s - at) / (at - before))
        now_s += take_s + per_step_s * (read_s[-1] - read_s[0]) / step_s
        read_s = read_s[-1:]
    return pace


def test_a_quick_host_gives_a_step_once() -> None:
    assert balanced(step_s=2.0, take_s=1.0, per_step_s=0.2).times == 1


def test_an_event_loop_that_is_behind_is_told_several_steps_at_once() -> None:
    assert balanced(step_s=1.0, take_s=20.0, per_step_s=0.5).times == MOST


def test_a_guest_that_waits_is_given_several_steps_at_once() -> None:
    pace = Pace()
    for _ in range(10):
        pace.guest(waited=True)
    assert pace.times == MOST


def behind() -> Pace:
    pace = Pace()
    for _ in range(20):
        pace.loop(3.0)
    assert pace.times == MOST
    return pace


def test_a_host_with_less_to_do_comes_down_again() -> None:
    pace = behind()
    for _ in range(100):
        pace.guest(waited=False)
        pace.loop(0.0)
    assert pace.times == 1


def test_one_late_plan_breaks_the_patience() -> None:
    pace = behind()
    for _ in range(20):
        for _ in range(6):
            pace.loop(0.0)
        pace.loop(0.9)
    assert pace.times == MOST


def test_one_pause_of_the_host_changes_nothing() -> None:
    pace = Pace()
    for _ in range(20):
        pace.guest(waited=True)
        pace.guest(waited=False)
        pace.loop(3.0)
        pace.loop(0.0)
    assert pace.times == 1
