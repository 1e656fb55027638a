"""Train the embedded guest with flash-linear-attention on one GPU, in minutes.

    python -m statevisor.guests.demo.train OUTPUT --prose austen.txt --seconds 330

Writes OUTPUT/model.safetensors (float16, fla names), OUTPUT/config.json and OUTPUT/report.json.
The weights are written every two minutes, at the end of the time budget and at an interrupt.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from statevisor.guests.demo.corpus import Recipe, Rows, batches, exam
from statevisor.guests.demo.documents import BOS, EOS, VOCABULARY
from statevisor.guests.demo.marks import examine, summary
from statevisor.guests.demo.pinning import pin_autotuning
from statevisor.guests.demo.trainer import Trainer, schedule

_LOG = logging.getLogger("statevisor.demo")
_LEARNT = 3.0  #: nats a byte; every 200 steps the loss must be below
_SAVE_EVERY = 120.0  #: seconds; a run that is cut off leaves the last of these


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One training run."""

    output: Path
    prose: Path | None
    start: Path | None  #: weights to go on from
    seconds: float  #: training time; export and exam come on top
    seed: int
    rows: int
    length: int
    rate: float
    hidden: int
    layers: int
    processes: int
    graph: bool  #: capture the step as a CUDA graph
    steps: int  #: most steps, for a smoke test; 0: the time alone decides
    profile: bool
    exam: int  #: documents of each of the four exams at the end
    device: str = "cuda"


def parse() -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description="train the embedded guest")
    parser.add_argument("output", type=Path)
    parser.add_argument("--prose", type=Path)
    parser.add_argument("--start", type=Path)
    parser.add_argument("--seconds", type=float, default=330)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--exam", type=int, default=512)
    return Options(**vars(parser.parse_args()))


def build(options: Options) -> Any:
    """fla's RWKV-7 in float32 on the GPU; its weights are drawn from the seed or read."""
    pin_autotuning()
    import torch
    from fla.models.rwkv7 import RWKV7Config, RWKV7ForCausalLM
    from safetensors.torch import load_file

    torch.manual_seed(options.seed)
    config = RWKV7Config(
        vocab_size=VOCABULARY,
        hidden_size=options.hidden,
        num_hidden_layers=options.layers,
        head_dim=64,
        bos_token_id=BOS,
        eos_token_id=EOS,
        use_l2warp=False,
        fuse_cross_entropy=False,
    )
    model = RWKV7ForCausalLM(config).float()
    if options.start:
        weights = load_file(options.start / "model.safetensors")
        model.load_state_dict({name: value.float() for name, value in weights.items()})
    return model.to(options.device)


def train(options: Options, model: Any, source: Iterator[Rows]) -> dict[str, Any]:
    """Step until the time is up; returns what happened."""
    trainer = Trainer(model, rows=options.rows, length=options.length, device=options.device)
    log: list[tuple[int, float, float]] = []
    trainer.feed(next(source))
    trainer.compute()  # compiles the kernels; the rate is still 0
    if options.graph:
        trainer.capture()
    _LOG.info("first step %.4f", trainer.loss.item())
    begun, steps, done = time.monotonic(), 0, 0.0
    saved = begun
    try:
        while done < 1:
            trainer.feed(next(source))
            trainer.rate.fill_(options.rate * schedule(done))
            trainer.run()
            steps += 1
            if steps % 10 == 0:  # reading the loss waits for the GPU, so the clock stays honest
                log.append((steps, time.monotonic() - begun, trainer.loss.item()))
            if steps % 200 == 0:
                _LOG.info("step %d %.1f s loss %.4f", *log[-1])
                if not log[-1][2] < _LEARNT:
                    raise RuntimeError(f"loss {log[-1][2]} after {steps} steps: not learning")
            if time.monotonic() > saved + _SAVE_EVERY:
                export(model, options.output)
                saved = time.monotonic()
            elapsed = time.monotonic() - begun
            done = max(elapsed / options.seconds, steps / options.steps if options.steps else 0)
    except KeyboardInterrupt:
        _LOG.info("interrupted: saving")
    _LOG.info("last step %.4f", trainer.loss.item())
    spent = time.monotonic() - begun
    _LOG.info("%d steps in %.1f s, %.1f ms each", steps, spent, 1e3 * spent / max(1, steps))
    if options.profile:
        _profile(trainer)
    return {"steps": steps, "seconds": round(spent, 1), "log": log}


def export(model: Any, folder: Path) -> None:
    """Write float16 weights and the configuration as an fla folder."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: value.detach().to("cpu", torch.float16).contiguous()
        for name, value in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = model.config.to_dict() | {"architectures": ["RWKV7ForCausalLM"], "dtype": "float16"}
    config.pop("transformers_version", None)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _profile(trainer: Trainer) -> None:
    """Print where the time of five steps goes."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(5):
            trainer.run()
        torch.cuda.synchronize()
    _LOG.info("%s", profiler.key_averages().table(sort_by="cuda_time_total", row_limit=25))


def main() -> None:
    """Train, save, then measure."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options = parse()
    recipe = Recipe(
        seed=options.seed, rows=options.rows, length=options.length + 1, prose=options.prose
    )
    source = batches(recipe, options.processes)
    first = next(source)  # the processes are forked before CUDA is touched
    clock = time.monotonic()
    model = build(options)
    parameters = sum(p.numel() for p in model.parameters())
    _LOG.info("%d parameters, built in %.1f s", parameters, time.monotonic() - clock)
    report: dict[str, Any] = {"options": asdict(options), "parameters": parameters}
    try:
        report |= train(options, model, _chain(first, source))
    finally:
        export(model, options.output)
    half = model.half().float()  # the exam is about the weights as they are shipped
    for plain, held_out in ((True, True), (True, False), (False, True), (False, False)):
        name = f"{'plain' if plain else 'changing'}_{'held_out' if held_out else 'trained'}"
        paper = exam(11, options.exam, options.length, held_out=held_out, plain=plain)
        report[name] = examine(half, paper)
        _LOG.info("%s\n%s", name, summary(report[name]))
    text = json.dumps(report, indent=1, default=str)
    (options.output / "report.json").write_text(text + "\n")


def _chain(first: Rows, rest: Iterator[Rows]) -> Iterator[Rows]:
    yield first
    yield from rest


if __name__ == "__main__":
    main()
