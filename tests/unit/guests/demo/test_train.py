"""The training loop on a small stand-in for the model; fla itself needs a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from statevisor.guests.demo import train
from statevisor.guests.demo.corpus import Recipe, Rows, batch
from statevisor.guests.demo.documents import VOCABULARY


class Small(torch.nn.Module):
    """Predicts the next id from the last one; answers as fla's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(VOCABULARY, VOCABULARY)
        self.device = torch.device("cpu")
        self.config = SimpleNamespace(to_dict=lambda: {"model_type": "rwkv7"})

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        return SimpleNamespace(logits=self.table(input_ids))


@pytest.fixture
def options(tmp_path: Path) -> train.Options:
    return train.Options(
        output=tmp_path / "out", prose=None, start=None, seconds=60, seed=1, rows=4, length=64,
        rate=0.1, hidden=8, layers=1, processes=1, graph=False, steps=30, profile=False, exam=4,
        device="cpu",
    )  # fmt: skip


def rows(options: train.Options) -> Iterator[Rows]:
    recipe = Recipe(seed=1, rows=options.rows, length=options.length + 1)
    number = 0
    while True:
        yield batch(recipe, number, [])
        number += 1


def test_the_loss_falls_and_the_budget_is_kept(options: train.Options) -> None:
    torch.manual_seed(0)
    report = train.train(options, Small(), rows(options))

    losses = [loss for _, _, loss in report["log"]]
    assert report["steps"] == 30
    assert losses[-1] < losses[0] - 1


def test_time_ends_a_run(options: train.Options) -> None:
    short = replace(options, seconds=1e-9, steps=0)

    report = train.train(short, Small(), rows(short))

    assert report["steps"] == 1


def test_a_model_that_does_not_learn_is_stopped(options: train.Options) -> None:
    stuck = replace(options, rate=0.0, steps=400, rows=1)

    with pytest.raises(RuntimeError, match="not learning"):
        train.train(stuck, Small(), rows(stuck))


def test_an_export_is_float16_with_a_config(options: train.Options) -> None:
    model = Small()
    train.export(model, options.output)

    (weight,) = load_file(options.output / "model.safetensors").values()
    assert weight.dtype == torch.float16
    assert torch.equal(weight, model.table.weight.half())
    config = json.loads((options.output / "config.json").read_text())
    assert config["architectures"] == ["RWKV7ForCausalLM"]
