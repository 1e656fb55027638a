"""Settings are checked; penalty counts follow from the transcript alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statevisor.hypervisor.errors import InvalidRequest
from statevisor.hypervisor.sampling import PenaltyCounts, SamplerSettings

SETTINGS = SamplerSettings(presence_penalty=0.5, frequency_penalty=0.25, penalty_decay=0.9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"min_p": 2.0},
        {"penalty_decay": 0.0},
        {"presence_penalty": float("inf")},
        {"logprobs": 21},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        SamplerSettings(**wrong)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 5), max_size=80), st.integers(0, 80))
def test_counts_built_token_by_token_equal_counts_rebuilt(tokens: list[int], cut: int) -> None:
    live = PenaltyCounts(settings=SETTINGS)
    live.extend(tokens[:cut], 100)
    live.bias(100 + cut)
    live.extend(tokens[cut:], 100 + min(cut, len(tokens)))
    again = PenaltyCounts(settings=SETTINGS)
    again.extend(tokens, 100)
    end = 100 + len(tokens)
    assert live.bias(end) == again.bias(end)


def test_a_count_decays_with_every_token_that_passes() -> None:
    counts = PenaltyCounts(settings=SETTINGS)
    counts.add(3, 10)
    counts.add(3, 12)
    ((token, amount),) = counts.bias(13)
    assert token == 3
    assert amount == pytest.approx(0.5 + 0.25 * ((0.9**2 + 1) * 0.9))


def test_without_penalties_there_is_no_bias() -> None:
    counts = PenaltyCounts(settings=SamplerSettings())
    counts.extend([1, 2, 3], 0)
    assert counts.bias(3) == ()
