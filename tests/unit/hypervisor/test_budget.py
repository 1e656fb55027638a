"""Prompts beside decoding actors: as many tokens as keep their pace."""

from __future__ import annotations

import pytest

from statevisor.hypervisor.budget import Budget


def lived(step_s: float, token_s: float, *, decoding: int = 64, most: int = 4096) -> float:
    """How much longer the slower half of the steps took, once a long prompt has gone on a while."""
    budget = Budget(most)
    for _ in range(50):
        budget.took(decoding, 0, step_s)
    ratios = []
    for _ in range(300):
        others = budget.tokens(decoding) - decoding
        took = step_s + others * token_s
        budget.took(decoding, others, took)
        ratios.append(took / step_s)
    return sorted(ratios[100:])[-2]


@pytest.mark.parametrize("token_s", [1e-3, 1e-2, 4e-2])
def test_a_step_with_a_prompt_takes_less_than_twice_one_without(token_s: float) -> None:
    assert 1.3 < lived(1.0, token_s) < 2.0


def test_the_share_is_never_nothing_and_never_more_than_a_step_may_carry() -> None:
    assert lived(1.0, 10.0) == 1.0 + 16 * 10.0
    budget = Budget(300)
    for _ in range(100):
        budget.took(10, 0, 1.0)
        budget.took(10, budget.tokens(10) - 10, 1.0)
    assert budget.tokens(10) == 300


def test_where_nobody_decodes_a_step_is_full() -> None:
    assert Budget(512).tokens(0) == 512


def test_what_a_small_prompt_shows_does_not_raise_the_share() -> None:
    budget = Budget(4096)
    budget.took(8, 0, 1.0)
    before = budget.tokens(8)
    for _ in range(50):
        budget.took(8, 3, 1.0)
    assert budget.tokens(8) == before


def test_without_a_step_to_compare_with_the_share_stays() -> None:
    budget = Budget(4096)
    before = budget.tokens(8)
    budget.took(8, 128, 100.0)
    assert budget.tokens(8) == before
