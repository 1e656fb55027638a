"""The same prompts through this program and through `generate` of a Hugging Face model.

    python -P tests/bench/side_by_side.py [--geometry 1.5b] [--prompt 256] [--tokens 128]

Both have the same random weights in bfloat16 on one CUDA device. Ours is the whole engine: visor,
scheduler, journal on a real disk, output gate, exact kernels; without HTTP. The peer is the
RWKV7ForCausalLM of flash-linear-attention as it comes, one static batch. Latency is from the call
to the last token of the last row. Prints one JSON object at the end and on stderr each figure as it
comes: with no kernel compiled before, the peer alone takes minutes to try its kernels' variants, of
which prompts of fewer than 64 tokens need fewer. Without CUDA only our side runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from statevisor.api.bench.report import conditions, progress
from statevisor.api.bench.stage import staged
from statevisor.guests.build import random_tensors
from statevisor.guests.checkpoint_names import Form, stored_name, to_stored
from statevisor.guests.families.rwkv7_weights import Rwkv7Config
from statevisor.guests.geometries import GEOMETRIES, random_guest
from statevisor.hypervisor.commands import CreateActor, DeleteActor, Generate
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.visor import Visor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--geometry", choices=[*GEOMETRIES], default="1.5b")
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    batches = [int(word) for word in options.batches.split(",")]
    dice = random.Random(1)
    vocab = GEOMETRIES[options.geometry]["vocab"]
    prompts = [
        tuple(dice.randrange(3, vocab) for _ in range(options.prompt)) for _ in range(max(batches))
    ]
    found: dict[str, Any] = {"conditions": conditions() | vars(options), "ours": {}, "peer": {}}
    with tempfile.TemporaryDirectory() as folder:
        ours = asyncio.run(run_ours(options, batches, prompts, Path(folder)))
    found["ours"] = {batch: one["figures"] for batch, one in ours.items()}
    if torch.cuda.is_available():
        found["conditions"]["gpu"] = torch.cuda.get_device_name()
        torch.cuda.empty_cache()
        peer = Peer(options.geometry)
        for batch in batches:
            figures, tokens = peer.run(prompts[:batch], options.tokens, options.rounds)
            same = [
                first(mine, theirs)
                for mine, theirs in zip(ours[batch]["tokens"], tokens, strict=True)
            ]
            # rounding differs, and with random weights the best two tokens are often close
            found["peer"][batch] = figures | {"median_equal_tokens": statistics.median(same)}
            progress(f"peer, {batch} rows: {found['peer'][batch]}")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


def first(a: list[int], b: list[int]) -> int:
    """How many tokens are the same from the start."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def figures(seconds: list[float], batch: int, tokens: int) -> dict[str, Any]:
    """Of the best round: others' work on the machine only ever adds."""
    best = min(seconds)
    return {"latency_s": round(best, 3), "tokens_per_s": round(batch * tokens / best, 1)}


# -- this program ---------------------------------------------------------------------------------


async def run_ours(
    options: argparse.Namespace, batches: list[int], prompts: list[tuple[int, ...]], folder: Path
) -> dict[int, dict[str, Any]]:
    """Figures and tokens by batch size."""
    began = time.perf_counter()
    guest = random_guest(options.geometry, slots=max(batches), state_dtype="F32", device="auto")
    progress(f"ours: started in {time.perf_counter() - began:.1f} s")
    async with staged(folder, guest, VisorConfig(host_bytes=0)) as stage:
        visor = stage.visor
        found = {}
        for batch in batches:
            seconds = []
            for n in range(options.rounds + 1):
                names = [f"a{batch}-{n}-{index}" for index in range(batch)]
                for name in names:
                    await visor.create(CreateActor(name=name))
                began = time.perf_counter()
                tokens = await asyncio.gather(
                    *(
                        answer(visor, name, prompt, options.tokens)
                        for name, prompt in zip(names, prompts, strict=False)
                    )
                )
                seconds.append(time.perf_counter() - began)
                for name in names:
                    await visor.delete(DeleteActor(actor=name))
            found[batch] = {
                "figures": figures(seconds[1:], batch, options.tokens),
                "tokens": tokens,
            }
            progress(f"ours, {batch} rows: {found[batch]['figures']}")
    return found


async def answer(visor: Visor, name: str, prompt: tuple[int, ...], tokens: int) -> list[int]:
    """Greedy tokens of one actor."""
    stream = await visor.generate(
        Generate(actor=name, prompt=prompt, max_tokens=tokens, ignore_eos=True)
    )
    return [event.token async for event in stream]


# -- the peer -------------------------------------------------------------------------------------


class Peer:
    """flash-linear-attention's RWKV-7 with the weights that `random_guest` draws."""

    def __init__(self, geometry: str) -> None:
        from fla.models import RWKV7Config, RWKV7ForCausalLM

        sizes = GEOMETRIES[geometry]
        config = Rwkv7Config(**sizes)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta"):
            self._model = RWKV7ForCausalLM(
                RWKV7Config(
                    hidden_size=config.width,
                    num_hidden_layers=config.layers,
                    head_dim=64,
                    num_heads=config.heads,
                    intermediate_size=config.ffn,
                    decay_low_rank_dim=config.rank_w,
                    a_low_rank_dim=config.rank_a,
                    v_low_rank_dim=config.rank_v,
                    gate_low_rank_dim=config.rank_g,
                    vocab_size=config.vocab,
                    bos_token_id=None,
                    eos_token_id=None,
                )
            )
        torch.set_default_dtype(torch.float32)
        stored = {
            stored_name(name, Form.FLA): to_stored(name, tensor.bfloat16(), Form.FLA)
            for name, tensor in random_tensors(config, device).items()
        }
        self._model.load_state_dict(stored, strict=True, assign=True)
        self._model.eval()

    def run(
        self, prompts: list[tuple[int, ...]], tokens: int, rounds: int
    ) -> tuple[dict[str, Any], list[list[int]]]:
        """Figures and greedy tokens of one static batch."""
        ids = torch.tensor(prompts, device="cuda")
        seconds = []
        for _ in range(rounds + 1):
            torch.cuda.synchronize()
            began = time.perf_counter()
            with torch.inference_mode():
                out = self._model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=tokens,
                    min_new_tokens=tokens,
                    do_sample=False,
                    use_cache=True,
                    pad_token_id=0,
                )
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        found = out[:, ids.shape[1] :].tolist()
        return figures(seconds[1:], len(prompts), tokens), found


if __name__ == "__main__":
    main()
