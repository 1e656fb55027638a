"""A real server on this machine's CPU: start to first token, then tokens per second over HTTP.

    python tests/bench/serve_cpu.py [--tokens N] [--threads N]

Every actor streams from the embedded guest; journal, output gate and HTTP are in the figures. The
peer is the plain reference (one actor, one token at a time) on the same weights in the same run.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from statevisor.api.cli.client import Client
from statevisor.api.demo.machine import Machine
from statevisor.guests.checkpoints import load_checkpoint
from statevisor.guests.mixers.wkv7 import empty_state, step

STORY = "Finn was a sleepy dragon. Finn found a silver hat in the old mill.\nQ: "
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "ignore_eos": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    found: dict[str, Any] = {"torch": torch.__version__, "tokens": options.tokens}
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--threads", str(options.threads)] if options.threads else []
        machine = Machine(Path(folder), flags)
        began = time.perf_counter()
        client = machine.start()
        try:
            found["ready_s"] = round(time.perf_counter() - began, 2)
            client.post("/v1/actors", {"name": "first", "prompt": STORY})
            generate(client, "first", 1)
            found["first_token_s"] = round(time.perf_counter() - began, 2)
            for actors in (1, 16):
                found[f"actors_{actors}"] = rate(client, actors, options.tokens)
        finally:
            machine.stop()
    found["reference_tokens_s"] = reference(options.tokens)
    for actors in (1, 16):
        ratio = found[f"actors_{actors}"]["tokens_s"] / found["reference_tokens_s"]
        found[f"actors_{actors}"]["over_reference"] = round(ratio, 2)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


def generate(client: Client, name: str, tokens: int) -> int:
    """Stream one turn to its end; how many tokens came."""
    body = {"max_tokens": tokens, "stream": True, **SAMPLED}
    events = client.events(f"/v1/actors/{name}/generate", body)
    return sum(event.name == "token" for event in events)


def rate(client: Client, actors: int, tokens: int) -> dict[str, float]:
    """All actors at once, each on a thread of its own."""
    names = [f"of-{actors}-{index}" for index in range(actors)]
    for name in names:
        client.post("/v1/actors", {"name": name, "prompt": STORY})
    told: list[int] = []
    threads = [
        threading.Thread(target=lambda n=name: told.append(generate(client, n, tokens)))
        for name in names
    ]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    if told != [tokens] * actors:
        raise RuntimeError(f"not every stream came to its end: {told}")
    return {"seconds": round(seconds, 2), "tokens_s": round(actors * tokens / seconds, 1)}


def reference(tokens: int) -> float:
    """Tokens per second of the plain reference."""
    config, tensors = load_checkpoint(Path(str(files("statevisor.guests.demo"))))
    whole = {name: tensor.float() for name, tensor in tensors.items()}
    with torch.inference_mode():
        state = empty_state(config.layers, config.width, torch.float32)
        token = 256
        began = time.perf_counter()
        for _ in range(tokens):
            token = int(step(whole, state, token).argmax())
        return round(tokens / (time.perf_counter() - began), 1)


if __name__ == "__main__":
    main()
