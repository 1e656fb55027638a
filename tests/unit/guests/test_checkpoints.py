from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from statevisor.guests.checkpoints import load_checkpoint, save_fla_folder, save_native
from statevisor.guests.digest import tensors_digest
from statevisor.guests.families.rwkv7_weights import Rwkv7Config, random_weights
from statevisor.hypervisor.errors import CheckpointInvalid

CONFIG = Rwkv7Config(
    layers=3,
    width=128,
    heads=2,
    ffn=96,
    rank_w=8,
    rank_a=12,
    rank_v=4,
    rank_g=16,
    vocab=40,
)
TENSORS = random_weights(CONFIG, seed=1)

Save = Callable[[Path], Path]


def as_fla(folder: Path) -> Path:
    save_fla_folder(CONFIG, TENSORS, folder, bos=3, eos=4)
    return folder


def as_pth(folder: Path) -> Path:
    save_native(CONFIG, TENSORS, folder / "model.pth")
    return folder / "model.pth"


def as_safetensors(folder: Path) -> Path:
    save_native(CONFIG, TENSORS, folder / "native.safetensors")
    return folder / "native.safetensors"


def as_native_folder(folder: Path) -> Path:
    save_native(CONFIG, TENSORS, folder / "model.safetensors")
    settings = {"model_type": "rwkv7", "hidden_size": 128, "num_hidden_layers": 3, "head_dim": 1}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def as_shards(folder: Path) -> Path:
    as_fla(folder)
    stored = load_file(folder / "model.safetensors")
    names = sorted(stored)
    places = {name: f"part-{index % 3}.safetensors" for index, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: stored[name] for name in names if places[name] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


FORMS: dict[str, Save] = {
    "fla": as_fla,
    "pth": as_pth,
    "safetensors": as_safetensors,
    "native_folder": as_native_folder,
    "shards": as_shards,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_canonical_tensors(tmp_path: Path, form: str) -> None:
    config, tensors = load_checkpoint(FORMS[form](tmp_path))
    assert config == CONFIG
    assert list(tensors) == list(TENSORS)
    assert tensors_digest(tensors) == tensors_digest(TENSORS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_stored_dtypes_are_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    half = {name: tensor.to(dtype) for name, tensor in TENSORS.items()}
    save_fla_folder(CONFIG, half, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] in ("float16", "bfloat16")
    save_native(CONFIG, half, tmp_path / "x.pth")
    for path in (tmp_path, tmp_path / "x.pth"):
        assert tensors_digest(load_checkpoint(path)[1]) == tensors_digest(half)


def test_one_layer(tmp_path: Path) -> None:
    config = replace(CONFIG, layers=1, rank_v=0)
    tensors = random_weights(config, seed=2)
    save_fla_folder(config, tensors, tmp_path)
    save_native(config, tensors, tmp_path / "x.pth")
    for path in (tmp_path, tmp_path / "x.pth"):
        loaded = load_checkpoint(path)
        assert loaded[0] == config
        assert tensors_digest(loaded[1]) == tensors_digest(tensors)


def test_the_original_form_has_vectors_of_three_axes(tmp_path: Path) -> None:
    stored = torch.load(as_pth(tmp_path), weights_only=True)
    assert stored["blocks.1.att.w0"].shape == stored["blocks.0.ffn.x_k"].shape == (1, 1, 128)
    assert stored["blocks.0.att.w1"].shape == (128, 8)
    assert stored["blocks.0.ln1.weight"].shape == (128,)


def test_a_file_changed_later_does_not_change_what_was_loaded(tmp_path: Path) -> None:
    path = as_safetensors(tmp_path)
    _, tensors = load_checkpoint(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(bytes(size - size // 2))
    assert tensors_digest(tensors) == tensors_digest(TENSORS)


def test_tied_embeddings(tmp_path: Path) -> None:
    as_fla(tmp_path)
    edit(tmp_path, lambda stored: stored.pop("lm_head.weight"))
    with pytest.raises(CheckpointInvalid, match=r"no tensor lm_head\.weight"):
        load_checkpoint(tmp_path)
    configure(tmp_path, tie_word_embeddings=True)
    _, tensors = load_checkpoint(tmp_path)
    assert torch.equal(tensors["head.weight"], TENSORS["emb.weight"])


def test_value_residual_of_layer_0_is_dropped(tmp_path: Path) -> None:
    path = as_pth(tmp_path)
    stored = torch.load(path, weights_only=True)
    stored |= {f"blocks.0.att.v{n}": torch.zeros(1, 1, 128) for n in range(3)}
    torch.save(stored, path)
    assert tensors_digest(load_checkpoint(path)[1]) == tensors_digest(TENSORS)


# -- damage ---------------------------------------------------------------------------------------


def edit(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    stored = load_file(folder / "model.safetensors")
    change(stored)
    save_file(stored, folder / "model.safetensors")


def configure(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def refused(path: Path, message: str) -> None:
    with pytest.raises(CheckpointInvalid, match=message) as caught:
        load_checkpoint(path)
    assert str(path.parent if path.suffix else path) in caught.value.detail
    assert caught.value.hint not in ("", CheckpointInvalid.hint)


LORA = "model.layers.1.attn.w_lora.lora.0.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop(LORA), rf"no tensor {LORA}"),
        (lambda s: s.pop("model.embeddings.weight"), r"no tensor model\.embeddings\.weight"),
        (
            lambda s: s.update({LORA: s[LORA].T.contiguous()}),
            rf"{LORA} as \[128, 8\], the geometry says \[8, 128\]",
        ),
        (
            lambda s: s.update({"model.norm.bias": torch.zeros(127)}),
            r"model\.norm\.bias as \[127\], the geometry says \[128\]",
        ),
        (
            lambda s: s.update({"model.layers.0.attn.r_k": torch.zeros(128)}),
            r"r_k as \[128\], which is no matrix",
        ),
        (lambda s: s.update({"model.extra": torch.zeros(1)}), r"3 layers has: model\.extra"),
        (
            lambda s: s.update({"model.layers.3.attn_norm.bias": torch.zeros(128)}),
            r"has: model\.layers\.3\.attn_norm\.bias",
        ),
        (
            lambda s: s["model.layers.2.ffn.value.weight"].view(-1)[5:6].fill_(float("nan")),
            r"numbers in model\.layers\.2\.ffn\.value\.weight that are not finite",
        ),
        (
            lambda s: s.update({"lm_head.weight": s["lm_head.weight"].to(torch.int8)}),
            r"lm_head\.weight as int8",
        ),
    ],
)
def test_the_first_wrong_tensor_is_named(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    edit(as_fla(tmp_path), change)
    refused(tmp_path, message)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "llama"}, 'says model_type = "llama", not "rwkv7"'),
        ({"hidden_act": "gelu"}, "says hidden_act"),
        ({"norm_eps": 1e-6}, "says norm_eps"),
        ({"attn": {"layers": [1]}}, "says attn"),
        ({"num_hidden_layers": 4}, r"no tensor model\.layers\.3\.attn_norm\.weight"),
        ({"num_hidden_layers": 2}, r"of 2 layers has: model\.layers\.2\."),
        ({"vocab_size": 41}, r"model\.embeddings\.weight as \[40, 128\], .* \[41, 128\]"),
        ({"decay_low_rank_dim": 9}, r"w_lora\.lora\.0\.weight as \[8, 128\], .* \[9, 128\]"),
        ({"hidden_size": "128"}, 'says hidden_size = "128"'),
        ({"num_heads": 3}, "not 3 heads of 64"),
    ],
)
def test_a_config_of_another_model_is_told(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    configure(as_fla(tmp_path), **settings)
    refused(tmp_path, message)


@pytest.mark.parametrize("form", ["pth", "safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.999])
def test_a_cut_file_is_told(tmp_path: Path, form: str, share: float) -> None:
    path = FORMS[form](tmp_path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    refused(path, "cannot be read")


@pytest.mark.parametrize("name", ["x.pth", "x.safetensors"])
@pytest.mark.parametrize("content", [b"not a checkpoint", bytes(100), b"\x80\x02}q\x00."])
def test_a_file_of_another_kind_is_told(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, "cannot be read|holds no named tensors")


def test_a_pickle_that_runs_code_is_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    (tmp_path / "x.pth").write_bytes(pickle.dumps({"emb.weight": Bomb()}))
    refused(tmp_path / "x.pth", "cannot be read")
    torch.save({"emb.weight": Bomb()}, tmp_path / "y.pth")
    refused(tmp_path / "y.pth", "cannot be read")
    assert not (tmp_path / "ran").exists()
    torch.load(tmp_path / "y.pth", weights_only=False)  # control: it is a working bomb
    assert (tmp_path / "ran").exists()


def test_a_pickle_of_other_things_is_told(tmp_path: Path) -> None:
    torch.save({"state_dict": TENSORS, "step": 5}, tmp_path / "x.pth")
    refused(tmp_path / "x.pth", "holds 'state_dict', which is no tensor")
    torch.save([torch.zeros(1)], tmp_path / "y.pth")
    refused(tmp_path / "y.pth", "holds no named tensors")


@pytest.mark.parametrize(
    "names",
    [
        ["model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight"],
        ["blocks.0.att.time_decay", "emb.weight", "blocks.0.att.r_k"],
        ["encoder.weight"],
    ],
)
def test_another_family_is_told(tmp_path: Path, names: list[str]) -> None:
    save_file({name: torch.zeros(2, 2) for name in names}, tmp_path / "model.safetensors")
    refused(tmp_path, "holds no RWKV-7 model|no tensor model.embeddings.weight")


def test_damaged_shards_are_told(tmp_path: Path) -> None:
    index = as_shards(tmp_path) / "model.safetensors.index.json"
    whole = json.loads(index.read_text())
    (tmp_path / "part-1.safetensors").rename(tmp_path / "part-1.away")
    refused(tmp_path, r"part-1\.safetensors cannot be read")
    (tmp_path / "part-1.away").rename(tmp_path / "part-1.safetensors")
    for place, message in (
        ("part-2.safetensors", r"part-2\.safetensors has no tensor lm_head\.weight"),
        ("../part-0.safetensors", "no plain file name for lm_head.weight"),
        (7, "no plain file name"),
    ):
        index.write_text(
            json.dumps({"weight_map": whole["weight_map"] | {"lm_head.weight": place}})
        )
        refused(tmp_path, message)
    del whole["weight_map"]["lm_head.weight"]
    index.write_text(json.dumps(whole))
    refused(tmp_path, r"does not list tensor lm_head\.weight")
    index.write_text("{}")
    refused(tmp_path, "has no weight_map")
    index.write_text("{")
    refused(tmp_path, "cannot be read")


def test_what_is_there_must_be_clear(tmp_path: Path) -> None:
    refused(tmp_path, "holds no weights")
    as_pth(tmp_path).rename(tmp_path / "a.pth")
    assert load_checkpoint(tmp_path)[0] == CONFIG
    as_pth(tmp_path)
    refused(tmp_path, r"holds 2 files \*\.pth")
    (tmp_path / "weights.bin").write_bytes(b"")
    refused(tmp_path / "weights.bin", "is no folder")
    refused(tmp_path / "none.pth", "cannot be read")
    (tmp_path / "config.json").write_text("[]")
    refused(tmp_path, "is no JSON object")


def test_tensors_that_do_not_fit_are_not_written(tmp_path: Path) -> None:
    for save in (
        lambda tensors: save_fla_folder(CONFIG, tensors, tmp_path),
        lambda tensors: save_native(CONFIG, tensors, tmp_path / "x.pth"),
    ):
        with pytest.raises(CheckpointInvalid):
            save(TENSORS | {"head.weight": torch.zeros(2, 2)})
    assert list(tmp_path.iterdir()) == []
