from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from statevisor.guests import sampling
from statevisor.guests.philox import uniform62
from statevisor.guests.sampling import sample
from statevisor.hypervisor.plan import RowResult
from statevisor.hypervisor.sampling import Draw, SamplerSettings

Sampler = Callable[[Tensor, Sequence[Draw]], list[RowResult]]


def draw(seed: int = 1, position: int = 0, bias: Sequence[tuple[int, float]] = (), **kw) -> Draw:
    return Draw(seed=seed, position=position, settings=SamplerSettings(**kw), bias=tuple(bias))


def logits_of(seed: int, rows: int, vocab: int, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


@st.composite
def settings_of(pick: st.DrawFn) -> SamplerSettings:
    return SamplerSettings(
        temperature=pick(st.sampled_from([0.0, 1e-9, 0.3, 0.7, 1.0, 1.9, 100.0])),
        top_k=pick(st.sampled_from([0, 1, 2, 5, 40, 10_000])),
        top_p=pick(st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01, 1e-12])),
        min_p=pick(st.sampled_from([0.0, 0.001, 0.1, 0.5, 1.0])),
        logprobs=pick(st.sampled_from([None, 0, 1, 5, 20])),
    )


@st.composite
def batches(pick: st.DrawFn, max_vocab: int = 70) -> tuple[Tensor, list[Draw]]:
    vocab = pick(st.integers(1, max_vocab))
    rows = pick(st.integers(1, 9))
    logits = logits_of(pick(st.integers(0, 2**30)), rows, vocab)
    if pick(st.booleans()):
        logits = logits.round()  # many ties, and both zeros
    draws = []
    for _ in range(rows):
        ids = pick(st.lists(st.integers(0, vocab - 1), unique=True, max_size=3))
        amounts = pick(st.lists(st.floats(-50, 50), min_size=len(ids), max_size=len(ids)))
        draws.append(
            Draw(
                seed=pick(st.integers(0, 2**53 - 1)),
                position=pick(st.integers(0, 2**40)),
                settings=pick(settings_of()),
                bias=tuple(sorted(zip(ids, amounts, strict=True))),
            )
        )
    return logits, draws


# -- the arithmetic, written a second time, one number at a time ----------------------------------


def oracle_weight(logit: np.float32, high: np.float32, scale: np.float32) -> int:
    f = np.float32
    z = max((logit - high) * scale, f(-29))
    n = np.rint(z * f(sampling._LOG2_E))
    r = (z - n * f(sampling._LN2[0])) - n * f(sampling._LN2[1])
    p = f(sampling._EXP[0])
    for coefficient in sampling._EXP[1:]:
        p = p * r + f(coefficient)
    return int(Fraction(float(p)) * 2**40) >> int(-n)


def oracle(logits: np.ndarray, draw: Draw) -> int:
    chosen = draw.settings
    biased = [np.float32(value) for value in logits]
    for token, amount in draw.bias:
        biased[token] = biased[token] - np.float32(amount)
    ranks = sorted(range(len(biased)), key=lambda token: (-biased[token], token))
    if chosen.temperature == 0.0:
        return ranks[0]
    scale = np.float32(min(1 / chosen.temperature, 2.0**100))
    weights = [oracle_weight(value, biased[ranks[0]], scale) for value in biased]
    kept = ranks[: chosen.top_k] if chosen.top_k else ranks
    if chosen.top_p < 1.0:
        share = max(1, round(chosen.top_p * 2**30))
        need = -(-sum(weights[token] for token in kept) * share // 2**30)
        head: list[int] = []
        while sum(weights[token] for token in head) < need:
            head.append(kept[len(head)])
        kept = head
    floor = math.ceil(Fraction(chosen.min_p) * 2**40)
    kept = sorted(token for token in kept if weights[token] >= floor)
    high, low = uniform62(
        np.array([draw.seed]).astype("u8"), np.array([draw.position]).astype("u8")
    )
    goal = (int(high[0]) * 2**31 + int(low[0])) * sum(weights[token] for token in kept) // 2**62
    for token in kept:
        goal -= weights[token]
        if goal < 0:
            return token
    raise AssertionError


@settings(deadline=None, max_examples=150)
@given(batches())
def test_agrees_with_the_arithmetic_as_written(batch: tuple[Tensor, list[Draw]]) -> None:
    logits, draws = batch
    tokens = [result.token for result in sample(logits, draws)]
    with np.errstate(over="ignore"):
        assert tokens == [oracle(row, d) for row, d in zip(logits.numpy(), draws, strict=True)]


SUMS = st.integers(1, 2**62 - 1)


@given(SUMS, st.integers(0, 2**62 - 1))
def test_a_random_number_is_scaled_exactly(total: int, u: int) -> None:
    halves = torch.tensor([[u >> 31, u & (2**31 - 1)]])
    assert sampling._scaled(torch.tensor([[total]]), halves).item() == u * total >> 62


@given(SUMS, st.integers(1, 2**30))
def test_a_share_is_rounded_up_exactly(total: int, share: int) -> None:
    exact = -(-total * share // 2**30)
    assert sampling._share_of(torch.tensor([[total]]), torch.tensor([[share]])).item() == exact


def test_borders_belong_to_the_next_token_and_zero_weights_to_none() -> None:
    sums = torch.tensor([[0, 0, 3, 3, 5, 5]])
    picks = [sampling._pick(sums, torch.tensor([[goal]])).item() for goal in range(5)]
    assert picks == [2, 2, 2, 4, 4]


@pytest.mark.parametrize(("top_p", "count"), [(0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (0.76, 4)])
def test_a_head_that_sums_to_exactly_top_p_is_enough(top_p: float, count: int) -> None:
    weights = torch.full((1, 4), 2**40)
    cut = sampling._cut(weights, torch.zeros(1, 4), [draw(temperature=1.0, top_p=top_p)])
    assert (cut > 0).sum() == count


def test_min_p_is_compared_exactly() -> None:
    share = int(Fraction(0.1) * 2**40)  # a little less than a tenth
    weights = torch.tensor([[2**40, share, share + 1]])
    cut = sampling._cut(weights, torch.zeros(1, 3), [draw(temperature=1.0, min_p=0.1)])
    assert cut.tolist() == [[2**40, 0, share + 1]]


# -- a row depends on itself alone ----------------------------------------------------------------


def depends_on_neighbours(sampler: Sampler, logits: Tensor, draws: Sequence[Draw]) -> bool:
    together = sampler(logits, draws)
    alone = [sampler(logits[i : i + 1].clone(), draws[i : i + 1])[0] for i in range(len(draws))]
    order = list(reversed(range(len(draws))))
    turned = sampler(logits[order], [draws[i] for i in order])[::-1]
    return not together == alone == turned


@settings(deadline=None, max_examples=150)
@given(batches(max_vocab=300))
def test_a_row_is_the_same_alone_and_among_any_others(batch: tuple[Tensor, list[Draw]]) -> None:
    assert not depends_on_neighbours(sample, *batch)


@pytest.mark.parametrize("vocab", [5, 260, 1003, 4099, 65536])
def test_a_row_is_the_same_at_every_vocabulary_size(vocab: int) -> None:
    draws = [
        draw(seed=1, temperature=1.0, logprobs=3),
        draw(seed=2),
        draw(seed=3, temperature=0.8, top_p=0.9),
        draw(seed=4, temperature=1.0, top_k=7, logprobs=0),
        draw(seed=5, temperature=1.0, min_p=0.05, bias=[(2, 1.5)]),
    ]
    assert not depends_on_neighbours(sample, logits_of(vocab, 5, vocab), draws)


def test_control_a_generator_for_the_whole_batch_depends_on_neighbours() -> None:
    def batch_multinomial(logits: Tensor, draws: Sequence[Draw]) -> list[RowResult]:
        generator = torch.Generator().manual_seed(draws[0].seed)
        tokens = torch.multinomial(torch.softmax(logits, dim=1), 1, generator=generator)
        return [RowResult(token=token) for token in tokens.flatten().tolist()]

    draws = [draw(seed=9, position=i, temperature=1.0) for i in range(8)]
    assert depends_on_neighbours(batch_multinomial, logits_of(0, 8, 50), draws)


def test_threads_and_block_size_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = logits_of(4, 6, 30_011)
    draws = [draw(seed=i, temperature=1.0, top_p=0.95, logprobs=2) for i in range(6)]
    before = torch.get_num_threads()
    results = []
    try:
        for threads, block in ((1, 2**16), (2, 2**16), (2, 2**30)):
            torch.set_num_threads(threads)
            monkeypatch.setattr(sampling, "_BLOCK", block)
            results.append(sample(logits, draws))
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1] == results[2]


def test_looking_at_few_ranks_first_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = logits_of(5, 40, 300, spread=0.5)
    draws = [
        draw(seed=i, temperature=1.0, top_k=(0, 9, 100)[i % 3], top_p=(0.02, 0.5, 0.99, 1.0)[i % 4])
        for i in range(40)
    ]
    whole = sample(logits, draws)
    monkeypatch.setattr(sampling, "_SHORT_RANKS", 8)
    assert sample(logits, draws) == whole


def test_settings_that_cut_nothing_change_nothing() -> None:
    logits = logits_of(6, 64, 33)
    plain = [draw(seed=i, temperature=1.0) for i in range(64)]
    loose = [draw(seed=i, temperature=1.0, top_k=33, top_p=1 - 1e-15) for i in range(64)]
    assert sample(logits, plain) == sample(logits, loose)


def test_inputs_are_not_modified() -> None:
    logits = logits_of(7, 2, 20)
    before = logits.clone()
    sample(logits, [draw(temperature=1.0, top_k=3, bias=[(1, 2.0)], logprobs=2), draw()])
    assert torch.equal(logits, before)


def test_no_rows() -> None:
    assert sample(torch.empty(0, 20), []) == []


# -- what is drawn --------------------------------------------------------------------------------


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    row = torch.tensor([[1.0, 5.0, -2.0, 5.0, 5.0]])
    assert sample(row, [draw()])[0].token == 1
    assert sample(row, [draw(bias=[(1, 0.25)])])[0].token == 3


def test_top_k_takes_the_lowest_ids_of_equals_and_zeros_are_equal() -> None:
    row = torch.tensor([[-1.0, -0.0, 0.0, -0.0, 0.0]])
    drawn = {sample(row, [draw(seed=i, temperature=1.0, top_k=2)])[0].token for i in range(60)}
    assert drawn == {1, 2}


def test_a_penalty_lowers_its_token_alone() -> None:
    row = logits_of(8, 1, 10)
    best = int(row.argmax())
    assert sample(row, [draw(bias=[(best, 1e9)])])[0].token == int(row[0].topk(2).indices[1])
    assert sample(row, [draw(bias=[(3, -1e9)])])[0].token == 3


def test_seed_and_position_key_the_draw() -> None:
    row = torch.zeros(1, 1000)
    by_position = [sample(row, [draw(position=i, temperature=1.0)])[0].token for i in range(20)]
    by_seed = [sample(row, [draw(seed=i, temperature=1.0)])[0].token for i in range(20)]
    assert len(set(by_position)) > 15
    assert len(set(by_seed)) > 15


def chi_square(counts: np.ndarray, shares: np.ndarray) -> float:
    """Statistic over the expected cells, in standard deviations above its mean."""
    expected = shares * counts.sum()
    cells = expected > 5
    statistic = ((counts[cells] - expected[cells]) ** 2 / expected[cells]).sum()
    freedom = cells.sum() - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    row = logits_of(9, 1, 40, spread=1.5)
    n = 20_000
    draws = [draw(seed=77, position=i, temperature=temperature) for i in range(n)]
    tokens = [result.token for result in sample(row.expand(n, -1).contiguous(), draws)]
    shares = torch.softmax(row[0].double() / temperature, dim=0).numpy()
    counts = np.bincount(tokens, minlength=40)
    assert chi_square(counts, shares) < 4
    wrong = torch.softmax(row[0].double() / (temperature * 1.2), dim=0).numpy()
    assert chi_square(counts, wrong) > 4


def reference_support(row: Tensor, chosen: SamplerSettings) -> set[int]:
    p = torch.softmax(row.double() / chosen.temperature, dim=0)
    ids = p.argsort(descending=True, stable=True)
    ids = ids[: chosen.top_k or None]
    share = p[ids] / p[ids].sum()
    ids = ids[share.cumsum(0) - share < chosen.top_p]
    return set(ids[p[ids] >= chosen.min_p * p.max()].tolist())


@pytest.mark.parametrize(
    "cut",
    [
        {"top_k": 3},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"top_k": 10, "top_p": 0.7},
        {"top_k": 12, "top_p": 0.9, "min_p": 0.05},
        {"top_p": 0.99, "temperature": 0.6},
    ],
)
def test_cuts_keep_what_a_float64_reference_keeps(cut: dict[str, float]) -> None:
    chosen = SamplerSettings(**{"temperature": 1.0, **cut})
    rows = logits_of(10, 50, 31, spread=2.0)
    draws = [Draw(seed=0, position=0, settings=chosen)] * 50
    weights = sampling._weights(rows, torch.full((50, 1), 1 / chosen.temperature))
    kept = sampling._cut(weights, rows, draws) > 0
    for row, mask in zip(rows, kept, strict=True):
        assert set(mask.nonzero().flatten().tolist()) == reference_support(row, chosen)


def test_weights_are_the_exponential() -> None:
    rows = torch.linspace(-30, 0, 100_003).unsqueeze(0)
    weights = sampling._weights(rows, None)[0].double()
    exact = torch.exp(rows[0].double()) * 2.0**40
    assert ((weights - exact).abs() / (exact * 2e-7 + 1)).max() < 1
    assert weights[-1] == 2**40


# -- log probabilities ----------------------------------------------------------------------------


def test_logprobs_are_those_of_the_raw_distribution() -> None:
    rows = logits_of(11, 3, 500)
    exact = torch.log_softmax(rows.double(), dim=1)
    draws = [
        draw(logprobs=5),
        draw(temperature=1.7, top_k=3, logprobs=2, bias=[(4, 3.0)]),
        draw(temperature=1.0, logprobs=0),
    ]
    for row, result, count in zip(exact, sample(rows, draws), (5, 2, 0), strict=True):
        assert result.logprobs is not None
        assert result.token is not None
        assert result.logprobs.chosen == pytest.approx(float(row[result.token]), abs=1e-6)
        best = row.topk(count)
        assert [token for token, _ in result.logprobs.top] == best.indices.tolist()
        assert [p for _, p in result.logprobs.top] == pytest.approx(best.values.tolist(), abs=1e-6)


def test_logprobs_come_from_an_exact_sum() -> None:
    for row in logits_of(13, 20, 300):
        total = sum(oracle_weight(value, row.numpy().max(), np.float32(1)) for value in row.numpy())
        norm = float(row.max()) + math.log(total / 2**40)
        found = sample(row[None], [draw(logprobs=1)])[0].logprobs
        assert found is not None
        assert found.chosen == float(row.max()) - norm


def test_logprobs_tie_to_the_lowest_id_and_end_at_the_vocabulary() -> None:
    result = sample(torch.tensor([[0.0, 1.0, 1.0, 0.0]]), [draw(logprobs=20)])[0]
    assert result.logprobs is not None
    assert [token for token, _ in result.logprobs.top] == [1, 2, 0, 3]


# -- damaged rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_gives_no_token_and_leaves_others_alone(bad: float) -> None:
    logits = logits_of(12, 4, 37)
    draws = [draw(seed=i, temperature=1.0, top_p=0.9, logprobs=2) for i in range(4)]
    clean = sample(logits, draws)
    logits[2, 36] = bad
    mixed = sample(logits, draws)
    assert mixed[2] == RowResult(finite=False)
    assert [mixed[i] for i in (0, 1, 3)] == [clean[i] for i in (0, 1, 3)]


def test_the_largest_logits_are_finite() -> None:
    logits = torch.full((2, 4), torch.finfo(torch.float32).max)
    logits[1] = -logits[1]
    results = sample(logits, [draw(temperature=1e-30, bias=[(0, 1e38)]), draw(bias=[(0, 1e38)])])
    assert all(result.finite for result in results)
    assert results[0].token in (1, 2, 3)
    assert results[1].token == 0  # it cannot get lower
