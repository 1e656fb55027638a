"""Reads and writes RWKV-7 checkpoints: Hugging Face folders and the original single files.

What comes out has canonical names and shapes, the stored dtypes, and memory of its own: a file
that changes later does not change a running model. Pickled code is never run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from statevisor.guests.checkpoint_names import (
    Form,
    form_of,
    is_unused,
    layers_of,
    names_of_old,
    stored_name,
    stored_shape,
    to_canonical,
    to_stored,
)
from statevisor.guests.families.rwkv7_weights import Rwkv7Config, check_tensors, shapes
from statevisor.hypervisor.errors import CheckpointInvalid

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

_DTYPES = {torch.float32, torch.float16, torch.bfloat16}
#: Names in a config.json of the geometry; the first few mean the same in every form.
_GEOMETRY = {
    "vocab_size": "vocab",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "head_dim": "head_size",
    "num_heads": "heads",
    "intermediate_size": "ffn",
    "decay_low_rank_dim": "rank_w",
    "a_low_rank_dim": "rank_a",
    "v_low_rank_dim": "rank_v",
    "gate_low_rank_dim": "rank_g",
}
_SHARED_GEOMETRY = ("vocab_size", "hidden_size", "num_hidden_layers")
#: Settings under which the stored tensors would mean another model.
_ONLY = {"hidden_act": "sqrelu", "norm_eps": 1e-5, "attn": None}
_FAMILY = {"model_type": "rwkv7"}


def load_checkpoint(path: Path | str) -> tuple[Rwkv7Config, dict[str, Tensor]]:
    """Geometry and canonical tensors of a folder or a .safetensors, .pth or .pt file.

    Raises: CheckpointInvalid (damaged, partial or of another family; names the first tensor).
    """
    path = Path(path)
    settings = _settings(path / CONFIG) if path.is_dir() else {}
    _check_settings(path, settings, _FAMILY)
    stored = _read_folder(path) if path.is_dir() else _read_file(path)
    form = form_of(stored)
    if form is None or names_of_old(stored):
        _fail(
            path,
            "holds no RWKV-7 model: its first tensor is " + next(iter(sorted(stored)), "missing"),
            "Only RWKV-7 (x070) checkpoints can be loaded.",
        )
    if form is Form.FLA:
        _check_settings(path, settings, _ONLY)
        if settings.get("tie_word_embeddings") and "model.embeddings.weight" in stored:
            stored.setdefault("lm_head.weight", stored["model.embeddings.weight"].clone())
    config = _geometry(path, stored, form, settings)
    tensors = {
        name: _checked(path, stored, name, shape, form) for name, shape in shapes(config).items()
    }
    known = {stored_name(name, form) for name in tensors}
    extra = sorted(name for name in stored if name not in known and not is_unused(name))
    if extra:
        _fail(
            path,
            f"has a tensor that no RWKV-7 model of {config.layers} layers has: {extra[0]}",
            "It may be a variant of RWKV-7, or config.json belongs to another model.",
        )
    return config, tensors


def save_fla_folder(
    config: Rwkv7Config,
    tensors: Mapping[str, Tensor],
    folder: Path,
    *,
    bos: int | None = None,
    eos: int | None = None,
) -> None:
    """Write config.json and model.safetensors as flash-linear-attention reads them.

    Raises: CheckpointInvalid (the tensors do not fit the geometry).
    """
    check_tensors(config, tensors)
    folder.mkdir(parents=True, exist_ok=True)
    geometry = asdict(config)
    settings = {key: geometry[field] for key, field in _GEOMETRY.items()}
    settings |= (
        _FAMILY
        | _ONLY
        | {
            "architectures": ["RWKV7ForCausalLM"],
            "bos_token_id": bos,
            "eos_token_id": eos,
            "dtype": str(tensors["emb.weight"].dtype).removeprefix("torch."),
            "fuse_norm": False,
            "norm_bias": True,
            "norm_first": True,
            "tie_word_embeddings": False,
        }
    )
    _replace(folder / WEIGHTS, lambda path: _save_tensors(config, tensors, path, Form.FLA))
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    _replace(folder / CONFIG, lambda path: path.write_text(text))


def save_native(config: Rwkv7Config, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write one .pth, .pt or .safetensors file in the original form.

    Raises: CheckpointInvalid (the tensors do not fit the geometry).
    """
    check_tensors(config, tensors)
    _replace(path, lambda new: _save_tensors(config, tensors, new, Form.NATIVE))


# -- files ----------------------------------------------------------------------------------------


def _read_folder(folder: Path) -> dict[str, Tensor]:
    if (folder / WEIGHTS).exists():
        return _read_safetensors(folder / WEIGHTS)
    if (folder / INDEX).exists():
        return _read_shards(folder)
    for pattern in ("*.safetensors", "*.pth"):
        files = sorted(folder.glob(pattern))
        if len(files) == 1:
            return _read_file(files[0])
        if files:
            _fail(
                folder,
                f"holds {len(files)} files {pattern} and no {INDEX}",
                f"Name one of them, or bring {INDEX} along.",
            )
    _fail(folder, "holds no weights", f"Put {WEIGHTS} or one .pth file there.")


def _read_file(path: Path) -> dict[str, Tensor]:
    match path.suffix:
        case ".safetensors":
            return _read_safetensors(path)
        case ".pth" | ".pt":
            return _read_pickle(path)
        case _:
            _fail(path, "is no folder, .safetensors, .pth or .pt file", "Check the path.")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            # A tensor of the open file is a view of it; later changes to the file would show.
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        _fail(path, f"cannot be read: {error}", "The file is damaged or cut; fetch it again.")


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything
        reason = str(error).partition("\n")[0]
        _fail(path, f"cannot be read: {reason}", "The file is damaged or cut; fetch it again.")
    if not isinstance(found, dict) or not found:
        _fail(path, "holds no named tensors", "Save the state dict of the model.")
    for name, tensor in found.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            _fail(path, f"holds {name!r}, which is no tensor", "Save the state dict alone.")
    return found


def _read_shards(folder: Path) -> dict[str, Tensor]:
    places = _settings(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        _fail(folder / INDEX, "has no weight_map", "Fetch it again.")
    shards: dict[str, dict[str, Tensor]] = {}
    stored = {}
    for name, file in places.items():
        if not isinstance(file, str) or Path(file).name != file:
            _fail(folder / INDEX, f"has no plain file name for {name}: {file!r}", "Fetch it again.")
        if file not in shards:
            shards[file] = _read_safetensors(folder / file)
        if name not in shards[file]:
            _fail(folder / file, f"has no tensor {name}", "The index and the shards differ.")
        stored[name] = shards[file].pop(name)
    rest = sorted(name for shard in shards.values() for name in shard)
    if rest:
        _fail(folder / INDEX, f"does not list tensor {rest[0]}", "The index and the shards differ.")
    return stored


def _settings(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes()) if path.exists() else {}
    except (OSError, ValueError) as error:
        _fail(path, f"cannot be read: {error}", "The file is damaged; fetch it again.")
    if not isinstance(found, dict):
        _fail(path, "is no JSON object", "The file is damaged; fetch it again.")
    return found


def _save_tensors(
    config: Rwkv7Config, tensors: Mapping[str, Tensor], path: Path, form: Form
) -> None:
    stored = {
        stored_name(name, form): to_stored(name, tensors[name].detach().cpu(), form)
        for name in shapes(config)
    }
    if path.suffix == ".safetensors":
        save_file(stored, path, metadata={"format": "pt"})
    else:
        # A view would take its whole storage along.
        torch.save({name: tensor.clone() for name, tensor in stored.items()}, path)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a whole file beside the old one, then put it in its place."""
    new = path.with_name(f".new-{os.getpid()}-{path.name}")
    try:
        write(new)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


# -- what they hold -------------------------------------------------------------------------------


def _check_settings(path: Path, settings: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for key, value in wanted.items():
        if settings.get(key, value) != value:
            _fail(
                path / CONFIG,
                f"says {key} = {json.dumps(settings[key])}, not {json.dumps(value)}",
                "Only plain RWKV-7 (x070) models can be loaded.",
            )


def _geometry(
    path: Path, stored: Mapping[str, Tensor], form: Form, settings: Mapping[str, Any]
) -> Rwkv7Config:
    """The geometry that the tensors have, but for what config.json says: it is the intent."""
    layers = layers_of(stored)
    vocab, width = _shape(path, stored, "emb.weight", form)
    heads, head_size = _shape(path, stored, "blocks.0.att.r_k", form)
    found: dict[str, int] = {
        "layers": layers,
        "vocab": vocab,
        "width": width,
        "heads": heads,
        "head_size": head_size,
        "ffn": _shape(path, stored, "blocks.0.ffn.key.weight", form)[0],
        "rank_v": _shape(path, stored, "blocks.1.att.v1", form)[1] if layers > 1 else 0,
    }
    for low_rank in "wag":
        found["rank_" + low_rank] = _shape(path, stored, f"blocks.0.att.{low_rank}1", form)[1]
    for key in _GEOMETRY if form is Form.FLA else _SHARED_GEOMETRY:
        said = settings.get(key)
        if said is None:
            continue
        if not isinstance(said, int) or isinstance(said, bool) or said < 0:
            _fail(path / CONFIG, f"says {key} = {json.dumps(said)}", "It must be a whole number.")
        found[_GEOMETRY[key]] = said
    try:
        return Rwkv7Config(**found)
    except CheckpointInvalid as error:
        _fail(path, f"has no possible geometry: {error.detail}", "See config.json.")


def _shape(path: Path, stored: Mapping[str, Tensor], name: str, form: Form) -> tuple[int, int]:
    tensor = to_canonical(name, _take(path, stored, name, form), form)
    if tensor.ndim != 2:
        _fail(
            path,
            f"has {stored_name(name, form)} as {list(tensor.shape)}, which is no matrix",
            "The file is damaged or of another family.",
        )
    return tensor.shape[0], tensor.shape[1]


def _take(path: Path, stored: Mapping[str, Tensor], name: str, form: Form) -> Tensor:
    key = stored_name(name, form)
    if key not in stored:
        _fail(path, f"has no tensor {key}", "The checkpoint is incomplete; fetch it again.")
    return stored[key]


def _checked(
    path: Path, stored: Mapping[str, Tensor], name: str, shape: tuple[int, ...], form: Form
) -> Tensor:
    raw = _take(path, stored, name, form)
    tensor = to_canonical(name, raw, form)
    key = stored_name(name, form)
    if tuple(tensor.shape) != shape:
        wanted = stored_shape(name, shape, form)
        _fail(
            path,
            f"has {key} as {list(raw.shape)}, the geometry says {list(wanted)}",
            "config.json or another tensor belongs to another model.",
        )
    if tensor.dtype not in _DTYPES:
        _fail(
            path,
            f"has {key} as {str(tensor.dtype).removeprefix('torch.')}",
            "Weights must be float32, float16 or bfloat16; quantised ones cannot be loaded.",
        )
    # one pass over the weights; a NaN is both the least and the greatest
    if not all(extreme.isfinite() for extreme in tensor.aminmax()):
        _fail(path, f"has numbers in {key} that are not finite", "Fetch it again.")
    return tensor.detach()


def _fail(path: Path, what: str, hint: str) -> NoReturn:
    raise CheckpointInvalid(f"{path} {what}", hint=hint)
