from __future__ import annotations

import math

import pytest
import torch

from statevisor.guests.families.rwkv7 import Rwkv7Model, layout
from statevisor.guests.families.rwkv7_weights import (
    Rwkv7Config,
    Rwkv7Weights,
    check_tensors,
    random_weights,
    shapes,
)
from statevisor.guests.mixers import wkv7
from statevisor.guests.ops_cpu import CpuOps
from statevisor.hypervisor.errors import CapabilityMissing, CheckpointInvalid

CONFIG = Rwkv7Config(
    layers=2, width=128, heads=2, ffn=256, rank_w=8, rank_a=10, rank_v=12, rank_g=16, vocab=50
)


def test_the_state_has_three_families_in_row_order() -> None:
    found = layout(CONFIG, "F32", torch.float32)
    described = [(f.name, f.shape, f.dtype, f.kind) for f in found.families]
    assert described == [
        ("wkv", (2, 2, 64, 64), "F32", "fixed"),
        ("shift_att", (2, 128), "F32", "fixed"),
        ("shift_ffn", (2, 128), "F32", "fixed"),
    ]
    assert found.row_bytes == 2 * 2 * 4096 * 4 + 2 * 2 * 128 * 4


def test_state_and_compute_dtypes_are_part_of_the_layout() -> None:
    half = layout(CONFIG, "F16", torch.bfloat16)
    assert [family.dtype for family in half.families] == ["F16", "BF16", "BF16"]
    fingerprints = {
        layout(CONFIG, state, act).fingerprint
        for state in ("F32", "F16")
        for act in (torch.float32, torch.bfloat16, torch.float16)
    }
    assert len(fingerprints) == 6


def test_a_state_dtype_that_no_operator_has_is_refused() -> None:
    with pytest.raises(CapabilityMissing, match="BF16"):
        layout(CONFIG, "BF16", torch.float32)


def test_the_published_sizes_follow_from_the_geometry() -> None:
    """Parameters of the 0.1B and the 1.5B checkpoints, which keep unused v tensors in layer 0."""
    small = Rwkv7Config(
        layers=12, width=768, heads=12, ffn=3072,
        rank_w=64, rank_a=64, rank_v=32, rank_g=128, vocab=65536,
    )  # fmt: skip
    large = Rwkv7Config(
        layers=24, width=2048, heads=32, ffn=8192,
        rank_w=96, rank_a=96, rank_v=64, rank_g=256, vocab=65536,
    )  # fmt: skip
    for config, billions in ((small, 0.191), (large, 1.527)):
        count = sum(math.prod(shape) for shape in shapes(config).values())
        assert round(count / 1e9, 3) == billions


def test_a_geometry_whose_heads_do_not_fill_the_width_is_refused() -> None:
    with pytest.raises(CheckpointInvalid, match="130"):
        Rwkv7Config(
            layers=1, width=130, heads=2, ffn=8, rank_w=8, rank_a=8, rank_v=8, rank_g=8, vocab=8
        )


@pytest.mark.parametrize("name", ["emb.weight", "blocks.1.att.v2", "blocks.0.ffn.x_k"])
def test_a_tensor_that_is_missing_or_misshapen_is_named(name: str) -> None:
    tensors = random_weights(CONFIG, 0)
    wrong = {**tensors, name: tensors[name][..., :-1]}
    with pytest.raises(CheckpointInvalid, match=name):
        check_tensors(CONFIG, wrong)
    del wrong[name]
    with pytest.raises(CheckpointInvalid, match=name):
        Rwkv7Weights.from_tensors(CONFIG, wrong)


def test_tensors_beyond_the_geometry_are_no_fault() -> None:
    check_tensors(CONFIG, {**random_weights(CONFIG, 0), "blocks.0.att.v0": torch.zeros(128)})


def test_weights_are_placed_for_the_operators() -> None:
    tensors = random_weights(CONFIG, 0)
    weights = Rwkv7Weights.from_tensors(CONFIG, tensors, dtype=torch.bfloat16)
    layer = weights.layers[1]
    assert layer.v1 is not None
    assert layer.v1.shape == (12, 128)
    assert torch.equal(layer.v1, tensors["blocks.1.att.v1"].T.bfloat16())
    assert torch.equal(layer.mixes[3], tensors["blocks.1.att.x_v"])
    assert weights.layers[0].v0 is weights.layers[0].v1 is weights.layers[0].v2 is None
    for matrix in weights.matrices():
        assert matrix.dtype == torch.bfloat16
        assert matrix.is_contiguous()
    assert layer.w0.dtype == layer.ln1_weight.dtype == layer.mixes.dtype == torch.float32
    assert len(weights.matrices()) == 2 * 14 - 2 + 1


def test_the_digest_tells_tensors_apart_and_nothing_else() -> None:
    tensors = random_weights(CONFIG, 0)
    digest = Rwkv7Weights.from_tensors(CONFIG, tensors).digest
    turned = dict(reversed(tensors.items()))
    assert Rwkv7Weights.from_tensors(CONFIG, turned, dtype=torch.float16).digest == digest
    for changed in (
        {"ln_out.bias": tensors["ln_out.bias"] + 1e-6},
        {"ln_out.bias": tensors["ln_out.bias"].double()},
    ):
        assert Rwkv7Weights.from_tensors(CONFIG, {**tensors, **changed}).digest != digest


def test_random_weights_keep_states_finite_and_of_ordinary_size() -> None:
    tensors = random_weights(CONFIG, 3)
    assert torch.equal(random_weights(CONFIG, 3)["emb.weight"], tensors["emb.weight"])
    assert not torch.equal(random_weights(CONFIG, 4)["emb.weight"], tensors["emb.weight"])
    state = wkv7.empty_state(CONFIG.layers, CONFIG.width, torch.float64)
    doubles = {name: tensor.double() for name, tensor in tensors.items()}
    for token in range(300):
        logits = wkv7.step(doubles, state, token % CONFIG.vocab)
    assert logits.std() > 0.1
    for part in state.values():
        assert part.isfinite().all()
        assert 0.01 < part.std() < 10


def test_the_oracle_changes_only_the_layers_it_ran() -> None:
    tensors = random_weights(CONFIG, 3)
    state = wkv7.empty_state(2, 128, torch.float32)
    wkv7.time_mix(tensors, 0, torch.randn(128), state, None)
    assert state["wkv"][0].any()
    assert state["shift_att"][0].any()
    assert not state["wkv"][1].any()
    assert not state["shift_ffn"].any()
    wkv7.channel_mix(tensors, 1, torch.randn(128), state)
    assert state["shift_ffn"][1].any()
    assert not state["shift_ffn"][0].any()


def test_a_model_is_built_on_the_device_of_its_operators() -> None:
    model = Rwkv7Model.build(CONFIG, random_weights(CONFIG, 0), CpuOps(), "F16")
    assert model.family == "rwkv7"
    assert model.vocab == 50
    assert model.layout.family("wkv").dtype == "F16"
    assert model.layout.family("shift_att").dtype == "F32"
