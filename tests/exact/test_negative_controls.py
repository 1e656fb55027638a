"""Each guarantee with its guard taken out: the check that passes elsewhere must fail here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from statevisor.guests.invariance import check_row_invariance
from statevisor.guests.ops import Activation, RaggedBatch
from statevisor.guests.ops_cpu import CpuOps
from statevisor.guests.ops_cpu_fast import FastCpuOps
from statevisor.guests.sampling import sample
from statevisor.hypervisor.errors import CapabilityMissing
from statevisor.hypervisor.plan import RowResult
from statevisor.hypervisor.sampling import Draw, SamplerSettings


class LibraryOps(CpuOps):
    """The linear as anybody would write it."""

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, activation: Activation | None = None
    ) -> torch.Tensor:
        y = x @ weight.T
        match activation:
            case "tanh":
                return y.tanh()
            case "sigmoid":
                return y.neg().exp().add(1).reciprocal()
            case "relu2":
                return y.relu().square()
            case None:
                return y


def check_company(rig, tokens: Sequence[int]) -> None:
    """An actor among seven has the bits it has alone."""
    rig.open(1)
    rig.step({1: tokens})
    alone = rig.row(1), rig.logits[1].tolist()
    for slot in range(1, 9):
        rig.open(slot)
    rig.step({slot: tokens[: 9 - slot] if slot > 1 else tokens for slot in range(8, 0, -1)})
    assert (rig.row(1), rig.logits[1].tolist()) == alone


def test_company_changes_nothing(make_model, make_rig, text) -> None:
    check_company(make_rig(make_model()), text(0, 5))


@pytest.mark.parametrize("ops", [LibraryOps, FastCpuOps])
def test_a_plain_library_product_is_caught(ops, make_model, make_rig, text) -> None:
    """So the fast mode, which has it, passes none of these tests, and is a build of its own."""
    model = make_model(ops=ops())
    with pytest.raises(AssertionError):
        check_company(make_rig(model), text(0, 5))


@pytest.mark.parametrize("ops", [LibraryOps, FastCpuOps])
def test_the_check_at_start_refuses_a_plain_library_product(ops, make_model) -> None:
    check_row_invariance(make_model())
    with pytest.raises(CapabilityMissing, match="other bits"):
        check_row_invariance(make_model(ops=ops()))


class StepwiseOps(CpuOps):
    """An operator that looks at the size of the batch."""

    def wkv7_output(self, y: torch.Tensor, *args: torch.Tensor, **kwargs: float) -> torch.Tensor:
        return super().wkv7_output(y * (1 + 1e-6 * len(y)), *args, **kwargs)


def test_the_check_at_start_refuses_an_operator_that_sees_the_batch(make_model) -> None:
    with pytest.raises(CapabilityMissing, match="alone than in company"):
        check_row_invariance(make_model(ops=StepwiseOps()))


def check_draws(rig, tokens: Sequence[int]) -> None:
    """What an actor draws does not depend on who draws beside it."""
    results = []
    for company in ([], [2], [2, 3, 4, 5]):
        for slot in (1, *company):
            rig.open(slot)
        results.append(rig.step({**dict.fromkeys(company, tokens[:3]), 1: tokens})[1].token)
    assert len(set(results)) == 1


WARM = SamplerSettings(temperature=3.0)


def by_draw(logits: torch.Tensor, draws: Sequence[Draw]) -> Sequence[RowResult]:
    return sample(logits, [replace(draw, settings=WARM) for draw in draws])


def by_row(logits: torch.Tensor, draws: Sequence[Draw]) -> Sequence[RowResult]:
    """As a sampler with one generator for the batch: the place in it keys the draw."""
    return by_draw(logits, [replace(draw, position=index) for index, draw in enumerate(draws)])


def test_draws_do_not_depend_on_the_row(make_model, make_rig, text) -> None:
    check_draws(make_rig(make_model(), sampler=by_draw), text(0, 5))


def test_a_sampler_that_looks_at_the_row_is_caught(make_model, make_rig, text) -> None:
    with pytest.raises(AssertionError):
        check_draws(make_rig(make_model(), sampler=by_row), text(0, 5))


def check_resume(rig, text, forgotten: str | None = None) -> None:
    """An image loaded into another slot goes on as if nothing had happened."""
    rig.open(1)
    rig.step({1: text(0, 9)})
    image = bytearray(rig.row(1))
    layout = rig.guest.layout
    if forgotten is not None:
        at = layout.offset(forgotten)
        size = layout.family(forgotten).nbytes
        image[at : at + size] = bytes(size)
    rig.open(2)
    rig.guest.load(2, memoryview(image))
    rig.step({1: [5]})
    rig.step({2: [5]})
    assert torch.equal(rig.logits[2], rig.logits[1])


def test_a_resumed_actor_goes_on_as_before(make_model, make_rig, text) -> None:
    check_resume(make_rig(make_model()), text)


@pytest.mark.parametrize("family", ["wkv", "shift_att", "shift_ffn"])
def test_an_image_that_lacks_a_family_is_caught(family, make_model, make_rig, text) -> None:
    with pytest.raises(AssertionError):
        check_resume(make_rig(make_model()), text, forgotten=family)


def check_reuse(rig, text, clear: bool = True) -> None:
    """The next actor in a slot sees nothing of the one before."""
    rig.open(2)
    rig.step({2: text(1, 1)})
    rig.open(1)
    rig.step({1: text(0, 50)})
    if clear:
        rig.open(1)
    rig.step({1: text(1, 1)})
    same = rig.row(1) == rig.row(2)  # outside of the assert: a diff of two states takes minutes
    assert same


def test_a_slot_is_used_again_without_a_trace(make_model, make_rig, text) -> None:
    check_reuse(make_rig(make_model()), text)


def test_a_slot_that_was_not_cleared_is_caught(make_model, make_rig, text) -> None:
    with pytest.raises(AssertionError):
        check_reuse(make_rig(make_model()), text, clear=False)


def padded(rig, slot: int, token: int = 0) -> None:
    """Fill every batch up with a row of one token, as graphs with buckets do."""
    forward = rig.guest._forward

    def step(batch: RaggedBatch) -> torch.Tensor:
        one = torch.ones(1, dtype=torch.int64)
        ends = batch.starts[-1:]
        filled = RaggedBatch(
            tokens=torch.cat([batch.tokens, one * token]),
            slots=torch.cat([batch.slots, one * slot]),
            starts=torch.cat([batch.starts, ends + 1]),
            rows=torch.cat([batch.rows, one * len(batch.slots)]),
            firsts=torch.cat([batch.firsts, one.bool()]),
            lasts=torch.cat([batch.lasts, ends]),
            longest=batch.longest,
        )
        return forward(filled)[:-1]

    rig.guest._forward = step


def check_padding(rig, text, slot: int, twin_logits: torch.Tensor) -> None:
    padded(rig, slot)
    rig.open(1)
    rig.open(rig.slots)
    rig.step({1: text(0, 5)})
    assert torch.equal(rig.logits[1], twin_logits)


def test_padding_rows_touch_slot_0_only(make_model, make_rig, alone, text) -> None:
    model = make_model()
    logits = alone(model, text(0, 5)).logits[-1]
    check_padding(make_rig(model), text, 0, logits)


def test_a_padding_row_at_a_real_slot_is_caught(make_model, make_rig, alone, text) -> None:
    model = make_model()
    logits = alone(model, text(0, 5)).logits[-1]
    with pytest.raises(AssertionError, match="outside the plan"):
        check_padding(make_rig(model, slots=6), text, 6, logits)


def test_a_padding_row_that_is_counted_as_a_token_is_caught(
    make_model, make_rig, alone, text
) -> None:
    """Padding a prompt, not the batch: the pad token goes through the state."""
    model = make_model()
    twin = alone(model, text(0, 5))
    rig = make_rig(model)
    rig.open(1)
    rig.step({1: (*text(0, 5), 0)})
    assert rig.row(1) != twin.rows[-1]
