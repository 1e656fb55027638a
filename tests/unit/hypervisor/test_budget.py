"""Prompts beside decoding actors: as many tokens as keep their pace."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from statevisor.hypervisor.budget import Budget


def lived(
    cost: Callable[[int], float], *, decoding: int = 64, most: int = 4096
) -> tuple[Budget, float]:
    """A budget once a long prompt has gone on for a while, and how much longer its slowest steps
    took than those without; `cost`: what so many tokens add to a step of 1."""
    budget = Budget(most)
    for _ in range(50):
        budget.took(decoding, 0, 1.0)
    took = []
    for _ in range(600):
        others = budget.tokens(decoding) - decoding
        took.append(1.0 + cost(others))
        budget.took(decoding, others, took[-1])
    return budget, max(took[200:])


@pytest.mark.parametrize("token_s", [1e-3, 1e-2, 4e-2])
def test_a_step_with_a_prompt_takes_less_than_twice_one_without(token_s: float) -> None:
    budget, ratio = lived(lambda tokens: tokens * token_s)
    assert 1.3 < ratio < 2.0
    assert budget.tokens(64) >= 64 + 16


def test_the_share_is_never_nothing() -> None:
    budget, _ = lived(lambda tokens: tokens * 10.0)
    assert budget.tokens(64) == 64 + 16


def test_the_share_is_never_more_than_a_step_may_carry() -> None:
    budget, _ = lived(lambda tokens: 0.0, most=300)
    assert budget.tokens(64) == 300


def test_where_a_smaller_share_costs_the_same_it_is_not_taken() -> None:
    """A device that runs 64 tokens in the time of one."""
    budget, ratio = lived(lambda tokens: 1.2 * -(-tokens // 64))
    assert budget.tokens(64) >= 64 + 32
    assert ratio <= 3.4


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
