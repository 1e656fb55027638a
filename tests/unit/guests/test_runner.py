from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from statevisor.guests.batch import pack
from statevisor.guests.families.rwkv7 import Rwkv7Model
from statevisor.guests.families.rwkv7_weights import Rwkv7Config, random_weights
from statevisor.guests.ops_cpu import CpuOps
from statevisor.guests.runner import Runner, golden_probe
from statevisor.guests.sampling import sample
from statevisor.guests.tokenizer_bytes import ByteTokenizer
from statevisor.hypervisor.errors import InvalidRequest
from statevisor.hypervisor.plan import DRAWN, Row, StepPlan
from statevisor.hypervisor.ports import Guest, Mutation
from statevisor.hypervisor.sampling import Draw, SamplerSettings

CONFIG = Rwkv7Config(
    layers=2, width=64, heads=1, ffn=128, rank_w=8, rank_a=8, rank_v=8, rank_g=8, vocab=272
)
TENSORS = random_weights(CONFIG, 1)
GREEDY = Draw(seed=1, position=1, settings=SamplerSettings(logprobs=2))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_guest(ops: CpuOps | None = None, tensors=TENSORS, **changes) -> Runner:
    state_dtype = changes.pop("state_dtype", "F32")
    model = Rwkv7Model.build(CONFIG, tensors, ops or CpuOps(), state_dtype)
    given = {
        "name": "tiny",
        "model": model,
        "tokenizer": ByteTokenizer(),
        "slots": 4,
        "step_tokens": 32,
    }
    return Runner(**{**given, **changes})


def row_of(guest: Guest, slot: int) -> bytes:
    out = bytearray(guest.layout.row_bytes)
    guest.save(slot, memoryview(out))
    return bytes(out)


# -- batches --------------------------------------------------------------------------------------
def test_a_plan_is_packed_in_the_order_of_its_rows() -> None:
    rows = [Row(slot=3, tokens=(7, 8, 9)), Row(slot=1, tokens=(5,)), Row(slot=2, tokens=(6, 4))]
    batch = pack(rows, torch.device("cpu"))
    assert batch.tokens.tolist() == [7, 8, 9, 5, 6, 4]
    assert batch.slots.tolist() == [3, 1, 2]
    assert batch.starts.tolist() == [0, 3, 4, 6]
    assert batch.rows.tolist() == [0, 0, 0, 1, 2, 2]
    assert batch.firsts.tolist() == [True, False, False, True, True, False]
    assert batch.lasts.tolist() == [2, 3, 5]
    assert batch.longest == 3


@pytest.mark.parametrize("lengths", [(1,), (1, 1, 1), (17,), (9, 8, 7, 1)])
def test_every_part_of_a_batch_is_aligned_and_of_the_type_that_kernels_expect(lengths) -> None:
    rows = [Row(slot=slot, tokens=(0,) * n) for slot, n in enumerate(lengths, 1)]
    batch = pack(rows, torch.device("cpu"))
    for name in ("tokens", "slots", "starts", "rows", "lasts"):
        assert getattr(batch, name).dtype == torch.int64
        assert getattr(batch, name).data_ptr() % 64 == 0
    assert batch.firsts.dtype == torch.bool
    assert batch.firsts.shape == batch.tokens.shape


# -- steps ----------------------------------------------------------------------------------------
def test_a_step_answers_row_by_row_and_draws_where_asked() -> None:
    guest = make_guest()
    rows = (
        Row(slot=2, tokens=(1, 2, 3), draw=GREEDY),
        Row(slot=4, tokens=(9,)),
        Row(slot=1, tokens=(4, 5), draw=replace(GREEDY, seed=7)),
    )
    first, middle, last = guest.step(StepPlan(rows=rows))
    assert middle.token is middle.logprobs is None
    for result in (first, last):
        assert result.logprobs is not None
        assert result.token == result.logprobs.top[0][0]
    alone = make_guest()
    assert alone.step(StepPlan(rows=rows[2:])) == (last,)
    assert row_of(alone, 1) == row_of(guest, 1)


def test_a_step_without_draws_runs_no_head(monkeypatch) -> None:
    guest = make_guest()
    monkeypatch.setattr(Rwkv7Model, "logits", None)
    (result,) = guest.step(StepPlan(rows=(Row(slot=1, tokens=(1, 2)),)))
    assert result.finite
    assert any(row_of(guest, 1))


def test_an_empty_plan_is_no_step() -> None:
    assert make_guest().step(StepPlan(rows=())) == ()


@pytest.mark.parametrize(
    "rows",
    [
        (Row(slot=0, tokens=(1,)),),
        (Row(slot=-1, tokens=(1,)),),
        (Row(slot=5, tokens=(1,)),),
        (Row(slot=2, tokens=(1,)), Row(slot=2, tokens=(1,))),
        (Row(slot=1, tokens=()),),
        (Row(slot=1, tokens=(272,)),),
        (Row(slot=1, tokens=(-2,)),),
        (Row(slot=1, tokens=(DRAWN, 1)),),
        (Row(slot=1, tokens=(1,) * 33),),
        (Row(slot=1, tokens=(1,), stops=frozenset(range(9))),),
    ],
)
def test_a_plan_of_another_guest_is_refused_before_anything_is_written(rows) -> None:
    guest = make_guest()
    before = guest.bank.bytes.clone()
    with pytest.raises(ValueError, match=r"plan|token"):
        guest.step(StepPlan(rows=rows))
    assert torch.equal(guest.bank.bytes, before)


def test_a_row_that_is_not_finite_is_flagged_with_and_without_a_draw() -> None:
    guest = make_guest()
    guest.bank.views["shift_att"][2, 0, 5] = torch.nan
    guest.bank.views["wkv"][3, 1, 0, 0, 0] = torch.inf
    results = guest.step(
        StepPlan(
            rows=(
                Row(slot=1, tokens=(1,), draw=GREEDY),
                Row(slot=2, tokens=(1,), draw=GREEDY),
                Row(slot=3, tokens=(1, 2)),
                Row(slot=4, tokens=(1,)),
            )
        )
    )
    assert [result.finite for result in results] == [True, False, False, True]
    assert results[1].token is None
    clean = make_guest()
    clean.step(StepPlan(rows=(Row(slot=1, tokens=(1,)), Row(slot=4, tokens=(1,)))))
    assert row_of(clean, 1) == row_of(guest, 1)
    assert row_of(clean, 4) == row_of(guest, 4)
    assert not guest.finite(memoryview(row_of(guest, 3)))
    assert guest.finite(memoryview(row_of(guest, 4)))


def test_a_sampler_is_given_drawn_rows_only_in_plan_order() -> None:
    seen = []

    def spy(logits, draws):
        seen.append((tuple(logits.shape), [draw.seed for draw in draws]))
        return sample(logits, draws)

    guest = make_guest(sampler=spy)
    rows = [
        Row(slot=slot, tokens=(slot,), draw=replace(GREEDY, seed=slot) if slot != 2 else None)
        for slot in (3, 2, 1)
    ]
    guest.step(StepPlan(rows=tuple(rows)))
    assert seen == [((2, 272), [3, 1])]


# -- what else the port asks ----------------------------------------------------------------------
def test_a_runner_says_what_it_is() -> None:
    guest = make_guest()
    assert (guest.name, guest.family, guest.slots, guest.step_tokens) == ("tiny", "rwkv7", 4, 32)
    assert guest.vocab_size == 272
    assert guest.tokenizer.bos == 256
    assert guest.rules["decay"] == 1


def test_states_are_moved_mutated_and_compared() -> None:
    guest = make_guest()
    guest.step(StepPlan(rows=(Row(slot=1, tokens=(1, 2, 3)),)))
    guest.copy(1, [2, 3])
    frames = guest.frames(2)
    size = guest.layout.row_bytes
    guest.save(3, frames[size:])
    halved = guest.mutate(Mutation(rule="decay", params={"alpha": 0.5}), [frames[size:]])
    guest.load(4, memoryview(halved))
    assert torch.equal(guest.bank.views["wkv"][4], guest.bank.views["wkv"][1] * 0.5)
    assert torch.equal(guest.bank.views["shift_ffn"][4], guest.bank.views["shift_ffn"][1])
    by_family = {diff.family: diff for diff in guest.diff(frames[size:], memoryview(halved))}
    assert by_family["wkv"].norm_b == pytest.approx(by_family["wkv"].norm_a / 2)
    assert by_family["shift_att"].distance == 0.0
    guest.clear(1)
    assert not any(row_of(guest, 1))
    with pytest.raises(InvalidRequest):
        guest.mutate(Mutation(rule="no such rule", params={}), [frames[size:]])


# -- fingerprints ---------------------------------------------------------------------------------
def test_equal_guests_have_equal_fingerprints() -> None:
    assert make_guest().fingerprints == make_guest(slots=2, name="other").fingerprints


def test_each_fact_shows_in_its_own_fingerprint() -> None:
    base = make_guest().fingerprints
    weights = make_guest(
        tensors={**TENSORS, "ln_out.bias": TENSORS["ln_out.bias"] + 1}
    ).fingerprints
    assert weights.layout == base.layout
    assert weights.weights != base.weights
    vocabulary = make_guest(tokenizer=ByteTokenizer(eos=(258,))).fingerprints
    assert vocabulary.weights != base.weights
    assert (vocabulary.layout, vocabulary.build) == (base.layout, base.build)
    state = make_guest(state_dtype="F16").fingerprints
    assert state.layout != base.layout
    assert state.build != base.build
    assert state.weights == base.weights


def test_the_number_of_threads_is_part_of_the_build() -> None:
    base = make_guest(CpuOps(threads=1)).fingerprints
    more = make_guest(CpuOps(threads=2)).fingerprints
    assert more.build != base.build
    assert (more.layout, more.weights) == (base.layout, base.weights)


class SilentlyOtherOps(CpuOps):
    """As a library that was changed under the same version."""

    def layer_norm(self, *args, **kwargs):
        return super().layer_norm(*args, **kwargs) * (1 + 2**-23)


def test_arithmetic_that_changed_in_silence_shows_in_the_build() -> None:
    changed = make_guest(SilentlyOtherOps()).fingerprints
    assert changed.build != make_guest().fingerprints.build


def test_the_golden_probe_is_the_same_in_another_process() -> None:
    script = """
import torch
torch.set_num_threads(1)
from statevisor.guests.families.rwkv7 import Rwkv7Model
from statevisor.guests.families.rwkv7_weights import Rwkv7Config, random_weights
from statevisor.guests.ops_cpu import CpuOps
from statevisor.guests.runner import golden_probe
config = Rwkv7Config(
    layers=2, width=64, heads=1, ffn=128, rank_w=8, rank_a=8, rank_v=8, rank_g=8, vocab=272
)
model = Rwkv7Model.build(config, random_weights(config, 1), CpuOps(), "F32")
model.ops.admit(model.matrices())
print(golden_probe(model))
"""
    other = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == golden_probe(make_guest()._model)


# -- the registry ---------------------------------------------------------------------------------
def test_the_package_of_guests_imports_no_torch() -> None:
    script = (
        "import sys, statevisor.guests as guests; guests.GuestConfig();"
        " sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
