"""The plan: exact budget, decode rows first, everyone gets on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from statevisor.hypervisor.sampling import Draw, SamplerSettings
from statevisor.hypervisor.scheduler import Work, plan, repeated

DRAW = Draw(seed=1, position=1, settings=SamplerSettings())


def work(slot: int, gap: int, *, closes: bool = True) -> Work:
    return Work(slot, tuple(range(gap)), closes, DRAW if closes else None)


@given(st.lists(st.integers(1, 50), max_size=12), st.integers(1, 64), st.integers(0, 10**6))
def test_the_budget_is_used_exactly_and_never_exceeded(
    gaps: list[int], budget: int, turn: int
) -> None:
    works = [work(i + 1, gap) for i, gap in enumerate(gaps)]
    rows = plan(works, budget, turn).plan.rows
    assert sum(len(row.tokens) for row in rows) == min(budget, sum(gaps))
    assert all(row.tokens for row in rows)
    assert len({row.slot for row in rows}) == len(rows)


@given(
    st.integers(1, 20), st.lists(st.integers(2, 500), min_size=1, max_size=5), st.integers(0, 99)
)
def test_decode_rows_never_wait_for_prompts(decodes: int, prompts: list[int], turn: int) -> None:
    works = [work(i + 1, gap) for i, gap in enumerate([*prompts, *([1] * decodes)])]
    rows = plan(works, decodes + 1, turn).plan.rows
    assert {row.slot for row in rows} >= {i + 1 + len(prompts) for i in range(decodes)}


def test_a_token_is_drawn_only_where_the_gap_closes() -> None:
    works = [work(1, 10), work(2, 3), work(3, 4, closes=False)]
    rows = {row.slot: row for row in plan(works, 12, 0).plan.rows}
    assert rows[1].draw is None
    assert rows[2].draw is DRAW
    assert rows[3].draw is None


@given(st.integers(2, 9), st.integers(1, 4))
def test_every_actor_gets_on_within_as_many_steps_as_there_are_actors(
    actors: int, budget: int
) -> None:
    served: set[int] = set()
    for turn in range(actors):
        works = [work(i + 1, 1) for i in range(actors)]
        served |= {row.slot for row in plan(works, budget, turn).plan.rows}
    assert served == set(range(1, actors + 1))


def test_a_step_given_again_is_the_same_rows_one_position_further() -> None:
    draw = Draw(seed=1, position=7, settings=SamplerSettings())
    first = plan([Work(1, (5,), True, draw), Work(2, (6,), False, None)], 9, 0)
    second = repeated(repeated(first, 3), 2)
    assert second.works == first.works
    assert second.plan.rows is first.plan.rows
    told = [[row.draw and row.draw.position for row in one.rows] for one in second.plan.resolved()]
    assert told == [[11, None], [12, None]]
    assert first.plan.resolved() == (first.plan,)
