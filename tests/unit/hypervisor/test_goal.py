"""A goal comes out of its turn's row as it went in."""

from __future__ import annotations

import json

import pytest

from statevisor.hypervisor.goal import Goal, goal_from, goal_record
from statevisor.hypervisor.sampling import SamplerSettings


@pytest.mark.parametrize(
    "goal",
    [
        Goal(),
        Goal(
            settings=SamplerSettings(
                temperature=0.5,
                top_p=0.25,
                top_k=3,
                min_p=0.125,
                presence_penalty=1.5,
                frequency_penalty=-2.0,
                penalty_decay=0.75,
                logprobs=4,
            ),
            seed=2**53 - 1,
            max_tokens=9,
            stop=("a", "bc"),
            stop_ids=frozenset({7, 3}),
        ),
    ],
)
def test_a_goal_comes_back_as_it_was(goal: Goal) -> None:
    assert goal_from(json.loads(json.dumps(goal_record(goal)))) == goal
