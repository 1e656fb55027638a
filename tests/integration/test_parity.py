"""Our RWKV-7 against three others: the author's package, a readable port, and fla's recurrence.

They are test dependencies only, and they share the weights through the checkpoint files that we
write, so names, transposes and shapes of both forms are part of what is compared.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from statevisor.guests.bank import Bank
from statevisor.guests.batch import pack
from statevisor.guests.checkpoints import save_fla_folder, save_native
from statevisor.guests.families.rwkv7 import Rwkv7Model
from statevisor.guests.families.rwkv7_weights import Rwkv7Config, random_weights
from statevisor.guests.mixers import wkv7
from statevisor.guests.ops_cpu import CpuOps
from statevisor.hypervisor.plan import Row

CONFIG = Rwkv7Config(
    layers=3,
    width=128,
    heads=2,
    ffn=320,
    rank_w=16,
    rank_a=12,
    rank_v=8,
    rank_g=24,
    vocab=97,
)
TENSORS = random_weights(CONFIG, seed=5)
SEEDS = range(6)
TOLERANCE = 1e-5

#: wkv [L, H, D(v), D(k)], the two shifts [L, C], the last token's logits [V].
Result = dict[str, Tensor]
Run = Callable[[list[int]], Result]


def prompt(seed: int) -> list[int]:
    """One token for seed 0, else a random number of them below 100."""
    generator = torch.Generator().manual_seed(seed)
    length = int(torch.randint(1, 100, (), generator=generator)) if seed else 1
    return torch.randint(0, CONFIG.vocab, (length,), generator=generator).tolist()


@contextmanager
def others() -> Iterator[None]:
    """What other packages warn of at import, construction and use is theirs."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


# -- ours -----------------------------------------------------------------------------------------


def oracle(tokens: list[int]) -> Result:
    """In float32, as all are."""
    state = wkv7.empty_state(CONFIG.layers, CONFIG.width, torch.float32)
    for token in tokens:
        logits = wkv7.step(TENSORS, state, token)
    return {**state, "logits": logits}


def fast(tokens: list[int]) -> Result:
    """The operators that serve on a CPU, in one call."""
    model = Rwkv7Model.build(CONFIG, TENSORS, CpuOps(), "F32")
    bank = Bank(model.layout, 1)
    with torch.inference_mode():
        batch = pack([Row(slot=1, tokens=tuple(tokens))], model.ops.device)
        logits = model.logits(model.forward(bank, batch))
    return {**{name: view[1] for name, view in bank.views.items()}, "logits": logits[0]}


OURS: dict[str, Run] = {"oracle": oracle, "fast": fast}


# -- theirs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def author(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The `rwkv` package reading the .pth file that we wrote."""
    path = tmp_path_factory.mktemp("native") / "model"
    save_native(CONFIG, TENSORS, path.with_suffix(".pth"))
    with pytest.MonkeyPatch.context() as patch, others():
        patch.setitem(os.environ, "RWKV_V7_ON", "1")
        patch.setitem(os.environ, "RWKV_JIT_ON", "0")
        patch.setitem(os.environ, "RWKV_CUDA_ON", "0")
        from rwkv.model import RWKV

        model = RWKV(model=str(path), strategy="cpu fp32")

    def run(tokens: list[int]) -> Result:
        with others():
            logits, state = model.forward(tokens, None)
        return {
            "shift_att": torch.stack(state[0::3]),
            "wkv": torch.stack(state[1::3]),
            "shift_ffn": torch.stack(state[2::3]),
            "logits": logits,
        }

    return run


@pytest.fixture(scope="module")
def fla_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fla")
    save_fla_folder(CONFIG, TENSORS, folder)
    return folder


@pytest.fixture(scope="module")
def port(fla_folder: Path) -> Run:
    """The `rwkv7-hf` package reading the folder that we wrote."""
    with others():
        from rwkv7_hf.configuration_rwkv7 import RWKV7Config
        from rwkv7_hf.modeling_rwkv7 import RWKV7ForCausalLM

        config = RWKV7Config.from_json_file(fla_folder / "config.json")
        model = RWKV7ForCausalLM(config).eval()
        model.load_state_dict(load_file(fla_folder / "model.safetensors"), strict=True)

    def run(tokens: list[int]) -> Result:
        with others():
            out = model(input_ids=torch.tensor([tokens]), use_cache=True)
        cache = out.past_key_values
        return {
            "wkv": torch.cat(cache.recurrent_state).transpose(-1, -2),  # theirs is [k, v]
            "shift_att": torch.cat(cache.attention_shift),
            "shift_ffn": torch.cat(cache.ffn_shift),
            "logits": out.logits[0, -1],
        }

    return run


# -- parity ---------------------------------------------------------------------------------------


def distance(a: Result, b: Result) -> float:
    """The largest relative distance of the four parts."""
    assert a.keys() == b.keys()
    distances = []
    for name, theirs in b.items():
        assert a[name].shape == theirs.shape
        distances.append((a[name].double() - theirs.double()).norm() / theirs.double().norm())
    return float(max(distances))


@pytest.mark.parametrize("theirs", ["author", "port"])
@pytest.mark.parametrize("ours", OURS)
def test_states_and_logits_agree(ours: str, theirs: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(theirs)
    for seed in SEEDS:
        tokens = prompt(seed)
        assert distance(OURS[ours](tokens), run(tokens)) < TOLERANCE, (seed, len(tokens))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("blocks.0.att.w0", lambda x: x + 1e-3),
        ("blocks.1.att.v2", torch.zeros_like),
        ("blocks.1.att.x_a", lambda x: 1 - x),
        ("blocks.2.att.r_k", lambda x: x.flip(0)),
        ("blocks.2.att.a1", lambda x: x.flip(1)),
        ("blocks.0.att.g2", lambda x: x * 1.001),
        ("blocks.2.ffn.x_k", lambda x: x.flip(0)),
        ("blocks.0.ln0.bias", torch.zeros_like),
    ],
)
def test_control_a_small_change_of_one_weight_shows(
    name: str,
    change: Callable[[Tensor], Tensor],
    port: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = prompt(1)
    theirs = port(tokens)
    monkeypatch.setitem(TENSORS, name, change(TENSORS[name]))
    for ours in OURS.values():
        assert distance(ours(tokens), theirs) > TOLERANCE


# -- fla ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_the_recurrence_agrees_with_fla(seed: int) -> None:
    with others():
        from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence

    generator = torch.Generator().manual_seed(seed)
    length = len(prompt(seed))
    r, k, v, kk, a, decay = (
        torch.randn(length, CONFIG.heads, 64, generator=generator) for _ in range(6)
    )
    kk, a = torch.nn.functional.normalize(kk, dim=-1), a.sigmoid()
    decay = torch.exp(-(torch.e**-0.5) * decay.sigmoid())
    state = torch.randn(2, CONFIG.heads, 64, 64, generator=generator)

    # theirs: [batch, head, token, channel], states [k, v], queries scaled by D^-0.5
    inputs = (r * 64**0.5, k, v, -kk, kk * a, decay.log())
    y_theirs, s_theirs = dplr_recurrence(
        *(x.transpose(0, 1)[None] for x in inputs), initial_state=state[1:].transpose(-1, -2)
    )
    batch = pack([Row(slot=1, tokens=(0,) * length)], torch.device("cpu"))
    with torch.inference_mode():
        y = CpuOps().wkv7(r, decay, k, v, kk, a, state, batch)
    ours = {"y": y, "state": state[1]}
    theirs = {"y": y_theirs[0].transpose(0, 1), "state": s_theirs[0].transpose(-1, -2)}
    assert distance(ours, theirs) < TOLERANCE


def test_fla_takes_every_tensor_that_we_write(fla_folder: Path) -> None:
    with others():
        from fla.models import RWKV7Config, RWKV7ForCausalLM

        config = RWKV7Config.from_json_file(fla_folder / "config.json")
        model = RWKV7ForCausalLM(config)
        stored = load_file(fla_folder / "model.safetensors")
        model.load_state_dict(stored, strict=True)
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == {
        name: tensor.shape for name, tensor in stored.items()
    }
