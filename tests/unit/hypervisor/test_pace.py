"""A step is given as seldom at once as keeps the guest busy."""

from __future__ import annotations

from statevisor.hypervisor.pace import Pace
from statevisor.hypervisor.plan import MOST_TIMES


def balanced(step_s: float, host_s: float, per_step_s: float, plans: int = 400) -> Pace:
    """The pace behind many plans of a host that needs so much a plan, and so much more a step."""
    pace = Pace()
    for _ in range(plans):
        guest, host = pace.times * step_s, host_s + pace.times * per_step_s
        if host > guest:
            pace.late()
        else:
            pace.early(host, guest)
    return pace


def test_a_quick_host_gives_a_step_once() -> None:
    assert balanced(step_s=2.0, host_s=1.0, per_step_s=0.2).times == 1


def test_a_slow_host_gives_it_as_often_as_it_must() -> None:
    assert balanced(step_s=2.0, host_s=4.0, per_step_s=0.5).times == 3
    assert balanced(step_s=1.0, host_s=90.0, per_step_s=0.5).times == MOST_TIMES


def test_a_host_with_less_to_do_comes_down_again() -> None:
    pace = balanced(step_s=2.0, host_s=12.0, per_step_s=0.1)
    assert pace.times > 5
    for _ in range(100):
        pace.early(0.5, 2.0 * pace.times)
    assert pace.times == 1


def test_one_late_plan_breaks_the_patience() -> None:
    pace = balanced(step_s=1.0, host_s=90.0, per_step_s=0.5)
    for _ in range(3):
        pace.early(0.1, 8.0)
    pace.early(7.9, 8.0)
    pace.early(0.1, 8.0)
    assert pace.times == MOST_TIMES


def test_one_pause_of_the_host_changes_nothing() -> None:
    pace = Pace()
    for _ in range(20):
        pace.late()
        pace.early(0.1, 1.0)
    assert pace.times == 1
