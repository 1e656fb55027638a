from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from statevisor.guests import GuestConfig, build_guest
from statevisor.guests.checkpoints import save_fla_folder
from statevisor.guests.families.rwkv7_weights import Rwkv7Config, random_weights
from statevisor.guests.ops_cpu import CpuOps
from statevisor.guests.tokenizer_bytes import FILE, ByteTokenizer
from statevisor.hypervisor.errors import (
    CapabilityMissing,
    CheckpointInvalid,
    InvalidRequest,
    ModelNotFound,
)
from statevisor.hypervisor.plan import Row, StepPlan
from statevisor.hypervisor.sampling import Draw, SamplerSettings

CONFIG = Rwkv7Config(
    layers=2, width=64, heads=1, ffn=128, rank_w=8, rank_a=8, rank_v=8, rank_g=8, vocab=272
)


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    where = tmp_path / "tiny-1"
    save_fla_folder(CONFIG, random_weights(CONFIG, 1), where)
    ByteTokenizer().write(where / FILE)
    return where


@pytest.fixture
def config(folder: Path) -> GuestConfig:
    return GuestConfig(model=str(folder), slots=3, device="cpu", threads=1)


def test_a_folder_becomes_a_guest_that_steps(config: GuestConfig) -> None:
    guest = build_guest(config)
    draw = Draw(seed=1, position=3, settings=SamplerSettings())
    plan = StepPlan(rows=(Row(slot=1, tokens=(256, 72, 105), draw=draw),))
    (result,) = guest.step(plan)
    assert result.finite
    assert result.token is not None
    assert (guest.name, guest.family, guest.slots) == ("tiny-1", "rwkv7", 3)


def test_names_dtypes_and_budgets_are_as_configured(config: GuestConfig) -> None:
    guest = build_guest(replace(config, name="mine", state_dtype="F16", step_tokens=7))
    assert guest.name == "mine"
    assert guest.step_tokens == 7
    assert guest.layout.family("wkv").dtype == "F16"
    assert guest.fingerprints.weights == build_guest(config).fingerprints.weights


def test_a_device_on_which_rows_are_not_independent_is_refused(config, monkeypatch) -> None:
    monkeypatch.setattr(CpuOps, "linear", lambda self, x, weight, activation=None: x @ weight.T)
    with pytest.raises(CapabilityMissing, match="other bits"):
        build_guest(config)
    build_guest(config, verify=False)


def test_the_fast_mode_is_a_build_of_its_own_that_promises_no_bits(config: GuestConfig) -> None:
    exact, fast = build_guest(config), build_guest(replace(config, mode="fast"))
    assert exact.fingerprints.exact
    assert not fast.fingerprints.exact
    assert fast.fingerprints.build != exact.fingerprints.build
    assert fast.fingerprints.weights == exact.fingerprints.weights
    assert fast.layout == exact.layout
    plan = StepPlan(rows=tuple(Row(slot=slot, tokens=(256, 72 + slot)) for slot in (1, 2, 3)))
    assert all(result.finite for result in fast.step(plan))


def test_a_model_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="nowhere"):
        build_guest(GuestConfig(model=str(tmp_path / "nowhere"), device="cpu"))


def test_a_vocabulary_larger_than_the_model_is_refused(config, folder: Path) -> None:
    ByteTokenizer(vocab_size=300).write(folder / FILE)
    with pytest.raises(CheckpointInvalid, match="300"):
        build_guest(config)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_named(config: GuestConfig) -> None:
    with pytest.raises(CapabilityMissing, match="CUDA"):
        build_guest(replace(config, device="cuda"))


@pytest.mark.parametrize(
    "wrong",
    [{"device": "tpu"}, {"state_dtype": "F64"}, {"mode": "fastest"}, {"slots": 0}, {"threads": 0}],
)
def test_a_configuration_is_checked_when_it_is_made(wrong) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        GuestConfig(**wrong)
