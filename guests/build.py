"""Composes a guest of its parts: checkpoint, operators, model, tokenizer, runner."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from statevisor.guests import FAMILIES, GuestConfig
from statevisor.guests.bank import Bank
from statevisor.guests.checkpoints import load_checkpoint
from statevisor.guests.invariance import check_row_invariance
from statevisor.guests.model import Model
from statevisor.guests.ops_cpu import CpuOps
from statevisor.guests.plain_steps import Steps
from statevisor.guests.runner import Runner
from statevisor.guests.tokenizers import load_tokenizer
from statevisor.hypervisor.errors import CapabilityMissing, CheckpointInvalid, ModelNotFound

DEMO = "demo"


def build(config: GuestConfig, *, verify: bool) -> Runner:
    """See `build_guest`."""
    path = find(config.model)
    geometry, tensors = load_checkpoint(path)
    tokenizer = load_tokenizer(path)
    ops, steps = _backend(config)
    model = _model_class("rwkv7").build(geometry, tensors, ops, config.state_dtype)
    if tokenizer.vocab_size > model.vocab:
        raise CheckpointInvalid(
            f"{path}: the tokenizer has {tokenizer.vocab_size} ids, the model {model.vocab}"
        )
    ops.admit(model.matrices())
    if verify:
        check_row_invariance(model)
    return Runner(
        name=config.name or (DEMO if config.model == DEMO else path.stem),
        model=model,
        tokenizer=tokenizer,
        slots=config.slots,
        step_tokens=config.step_tokens,
        steps=steps,
    )


def find(model: str) -> Path:
    """Where a model lies. Raises: ModelNotFound."""
    path = Path(str(files("statevisor.guests.demo"))) if model == DEMO else Path(model)
    if not path.exists() or (model == DEMO and not any(path.glob("*.safetensors"))):
        raise ModelNotFound(
            f"there is no model at {path}", hint="Name a folder with a checkpoint, or `demo`."
        )
    return path


def _model_class(family: str) -> Any:
    module, name = FAMILIES[family]
    return getattr(import_module(module), name)


def _backend(config: GuestConfig) -> tuple[Any, Callable[[Model, Bank], Steps] | None]:
    """The operators of a device, and how a bank is stepped there."""
    cuda = torch.cuda.is_available()
    if config.device == "cpu" or (config.device == "auto" and not cuda):
        # The other half is for the event loop and the journal: threads that wait for a core spin.
        return CpuOps(config.threads or max(1, (os.cpu_count() or 1) // 2)), None
    if not cuda:
        raise CapabilityMissing("torch finds no CUDA device", hint="Start with --device cpu.")
    # Imported here: without a driver the kernels' compiler warns of its absence.
    from statevisor.guests.device_steps import DeviceSteps
    from statevisor.guests.ops_triton import TritonOps

    device = torch.device("cuda", torch.cuda.current_device())

    def captured(model: Model, bank: Bank) -> Steps:
        steps = DeviceSteps(model, bank)
        steps.capture()
        return steps

    return TritonOps(device, torch.bfloat16), captured
