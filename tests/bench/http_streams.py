"""Streams over HTTP against the engine alone: `python -P tests/bench/http_streams.py --streams N`.

A real server streams to N clients in processes of their own while another client reads one actor
again and again; then the same model answers as many turns without HTTP, in this process. Both write
their journal to the same disk. `--geometry` makes random weights of a published size; without it
the embedded guest is used. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from statevisor.api.bench.report import conditions, quantiles
from statevisor.api.bench.stage import staged
from statevisor.api.demo.machine import Machine
from statevisor.guests import GuestConfig, build_guest
from statevisor.guests.geometries import GEOMETRIES
from statevisor.hypervisor.commands import CreateActor, Generate
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.visor import Visor

PROMPT = "In the beginning"
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "ignore_eos": True}
MARK = b"event: token\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=400, help="of each stream")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=4, help="processes that read streams")
    parser.add_argument("--geometry", choices=[*GEOMETRIES])
    parser.add_argument("--state-dtype", choices=["F32", "F16"], default="F16")
    options = parser.parse_args()
    found: dict[str, Any] = {"conditions": conditions() | vars(options)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = save(options.geometry, folder / "model") if options.geometry else "demo"
        flags = ["--model", model, "--slots", str(options.streams)]
        flags += ["--workers", str(options.workers), "--set", f"state_dtype={options.state_dtype}"]
        machine = Machine(folder, flags)
        machine.start()
        url = json.loads((folder / "ready.json").read_text())["url"]
        try:
            found["http"] = over_http(url, options)
        finally:
            machine.stop()
        found["engine"] = asyncio.run(direct(model, folder / "direct", options))
    over = found["http"]["tokens_per_s"] / found["engine"]["tokens_per_s"]
    found["http_over_engine"] = round(over, 3)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


def save(geometry: str, folder: Path) -> str:
    """A checkpoint folder of random weights with the byte vocabulary's tokenizer."""
    import torch

    from statevisor.guests.build import random_tensors
    from statevisor.guests.checkpoints import save_fla_folder
    from statevisor.guests.families.rwkv7_weights import Rwkv7Config
    from statevisor.guests.tokenizer_bytes import ByteTokenizer

    config = Rwkv7Config(**GEOMETRIES[geometry])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tensors = {name: one.bfloat16() for name, one in random_tensors(config, device).items()}
    save_fla_folder(config, tensors, folder)
    ByteTokenizer(vocab_size=config.vocab).write(folder / "byte_tokenizer.json")
    return str(folder)


# -- over HTTP ------------------------------------------------------------------------------------


def over_http(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of the whole time in which all streams run, and a reader's waits."""
    names = [f"a{index}" for index in range(options.streams)]
    asyncio.run(create(url, names))
    share = -(-len(names) // options.clients)
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(options.clients + 1) as pool:
        reader = pool.apply_async(read_one, (url, names[0], len(names)))
        parts = [names[at : at + share] for at in range(0, len(names), share)]
        works = [pool.apply_async(read_streams, (url, part, options.tokens)) for part in parts]
        ends = [end for work in works for end in work.get()]
        waits = reader.get()
    begin, end = max(first for first, _, _ in ends), min(last for _, last, _ in ends)
    rate = sum((count - 1) / (last - first) for first, last, count in ends)
    return {
        "tokens_per_s": round(rate),
        "all_running_s": round(end - begin, 2),
        "get_ms": quantiles([wait * 1e3 for wait in waits]),
    }


async def create(url: str, names: list[str]) -> None:
    async with aiohttp.ClientSession(url) as session:
        for name in names:
            async with session.post("/v1/actors", json={"name": name}) as answer:
                assert answer.status == 201, await answer.text()


def read_streams(url: str, names: list[str], tokens: int) -> list[tuple[float, float, int]]:
    """When each stream's first and last token came, and how many."""
    return asyncio.run(_read_streams(url, names, tokens))


async def _read_streams(url: str, names: list[str], tokens: int) -> list[tuple[float, float, int]]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector) as session:
        return list(await asyncio.gather(*(_stream(session, name, tokens) for name in names)))


async def _stream(
    session: aiohttp.ClientSession, name: str, tokens: int
) -> tuple[float, float, int]:
    body = {"prompt": PROMPT, "max_tokens": tokens, "stream": True, **SAMPLED}
    first = last = 0.0
    count = 0
    async with session.post(f"/v1/actors/{name}/generate", json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for chunk in answer.content.iter_any():
            seen = chunk.count(MARK)
            if seen:
                last = time.time()
                first = first or last
                count += seen
    return first, last, count


def read_one(url: str, name: str, streams: int) -> list[float]:
    """Waits of a client that reads one actor until nothing runs any more."""
    return asyncio.run(_read_one(url, name, streams))


async def _read_one(url: str, name: str, streams: int) -> list[float]:
    waits = []
    begun = False
    async with aiohttp.ClientSession(url) as session:
        while True:
            began = time.perf_counter()
            async with session.get(f"/v1/actors/{name}") as answer:
                actor = await answer.json()
            waits.append(time.perf_counter() - began)
            if begun and actor["status"] != "running":
                return waits
            begun = begun or actor["status"] == "running"
            if not begun:
                waits.clear()
            await asyncio.sleep(0.005)


# -- the engine alone -----------------------------------------------------------------------------


async def direct(model: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The same turns of the same model through a visor in this process."""
    guest = build_guest(
        GuestConfig(model=model, slots=options.streams, state_dtype=options.state_dtype)
    )
    async with staged(folder, guest, VisorConfig(host_bytes=0)) as stage:
        visor = stage.visor
        names = [f"a{index}" for index in range(options.streams)]
        for name in names:
            await visor.create(CreateActor(name=name))
        ends = await asyncio.gather(*(_turn(visor, name, options.tokens) for name in names))
    return {"tokens_per_s": round(sum((count - 1) / (last - first) for first, last, count in ends))}


async def _turn(visor: Visor, name: str, tokens: int) -> tuple[float, float, int]:
    stream = await visor.generate(
        Generate(
            actor=name,
            prompt=PROMPT,
            max_tokens=tokens,
            settings=SamplerSettings(temperature=0.8, top_p=0.9),
            ignore_eos=True,
        )
    )
    first = last = 0.0
    count = 0
    async for _ in stream:
        last = time.perf_counter()
        first = first or last
        count += 1
    return first, last, count


if __name__ == "__main__":
    main()
