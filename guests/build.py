"""Composes a guest of its parts: checkpoint, operators, model, tokenizer, runner."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from statevisor.guests import FAMILIES, GuestConfig
from statevisor.guests.bank import Bank
from statevisor.guests.checkpoints import load_checkpoint
from statevisor.guests.families.rwkv7_weights import Rwkv7Config, shapes
from statevisor.guests.invariance import check_row_invariance
from statevisor.guests.mixed_rows import mixed_sizes
from statevisor.guests.model import Model
from statevisor.guests.ops_cpu import CpuOps
from statevisor.guests.ops_cpu_fast import FastCpuOps
from statevisor.guests.plain_steps import Steps
from statevisor.guests.runner import Runner
from statevisor.guests.tokenizer_bytes import ByteTokenizer
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
    if verify and ops.exact:
        check_row_invariance(model)
    return Runner(
        name=config.name or (DEMO if config.model == DEMO else path.stem),
        model=model,
        tokenizer=tokenizer,
        slots=config.slots,
        step_tokens=config.step_tokens,
        steps=steps,
    )


def build_random(
    name: str,
    sizes: Mapping[str, int],
    *,
    slots: int,
    state_dtype: str,
    device: str,
    threads: int | None,
    mode: str,
    step_tokens: int,
) -> Runner:
    """See `geometries.random_guest`."""
    geometry = Rwkv7Config(**sizes)
    config = GuestConfig(
        slots=slots,
        state_dtype=state_dtype,
        device=device,
        threads=threads,
        mode=mode,
        step_tokens=max(slots, step_tokens),
    )
    ops, steps = _backend(config)
    tensors = random_tensors(geometry, ops.device)
    # Gigabytes that a seed, a device and a library made need not be read to be told apart.
    drawn = f"random {geometry} {ops.device.type} torch {torch.__version__}"
    model = _model_class("rwkv7").build(geometry, tensors, ops, state_dtype, drawn)
    del tensors
    ops.admit(model.matrices())
    return Runner(
        name=name,
        model=model,
        tokenizer=ByteTokenizer(vocab_size=geometry.vocab),
        slots=slots,
        step_tokens=config.step_tokens,
        steps=steps,
    )


def random_tensors(geometry: Rwkv7Config, device: torch.device) -> dict[str, torch.Tensor]:
    """Canonical tensors, drawn on the device since a processor would take minutes."""
    generator = torch.Generator(device).manual_seed(1)
    tensors = {}
    for name, shape in shapes(geometry).items():
        noise = torch.randn(shape, generator=generator, device=device)
        if len(shape) == 2 and not name.endswith("r_k"):
            inner = shape[0] if name[-1] in "12" else shape[1]
            tensors[name] = noise / inner**0.5
        else:
            tensors[name] = 0.1 * noise + (1.0 if "ln" in name and "weight" in name else 0.0)
    return tensors


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
        threads = config.threads or max(1, (os.cpu_count() or 1) // 2)
        return (CpuOps if config.mode == "exact" else FastCpuOps)(threads), None
    if not cuda:
        raise CapabilityMissing("torch finds no CUDA device", hint="Start with --device cpu.")
    # Imported here: without a driver the kernels' compiler warns of its absence.
    from statevisor.guests.device_steps import DeviceSteps
    from statevisor.guests.ops_fast import FastOps
    from statevisor.guests.ops_triton import TritonOps

    device = torch.device("cuda", torch.cuda.current_device())

    def captured(model: Model, bank: Bank) -> Steps:
        sizes = mixed_sizes(max(config.step_tokens, config.slots), bank.slots)
        steps = DeviceSteps(model, bank, sizes=sizes)
        steps.capture()
        return steps

    return (TritonOps if config.mode == "exact" else FastOps)(device, torch.bfloat16), captured
