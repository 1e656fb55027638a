"""The promise from outside: over HTTP, on a real disk, through hibernation and kill -9.

Every subject lives a hard life (its input in odd pieces, snapshots, both lower tiers, neighbours
that come and go, a server that is killed in the middle of a token stream). Its twin gets the same
tokens in one call on a server that is left alone. Both must say exactly the same.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from statevisor.api.demo.machine import Machine
from statevisor.guests.checkpoints import save_fla_folder
from statevisor.guests.families.rwkv7 import Rwkv7Config, random_weights
from statevisor.guests.tokenizer_bytes import ByteTokenizer

GREEDY: dict[str, Any] = {"temperature": 0}
SAMPLED: dict[str, Any] = {
    "temperature": 0.9,
    "top_p": 0.95,
    "top_k": 50,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.2,
    "penalty_decay": 0.98,
}
SUBJECTS = 6
GENERATED = 60


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small RWKV-7 with random weights and the byte vocabulary."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    config = Rwkv7Config(
        layers=3, width=128, heads=2, ffn=256, rank_w=8, rank_a=8, rank_v=8, rank_g=16, vocab=272
    )
    save_fla_folder(config, random_weights(config, seed=5), folder)
    ByteTokenizer().write(folder / "byte_tokenizer.json")
    return folder


@pytest.fixture
def machines(tmp_path: Path, checkpoint: Path) -> Iterator[tuple[Machine, Machine]]:
    """The server that is treated badly (few slots, a small host tier) and the one left alone."""
    made = []
    for name, slots, frames in (("hard", 5, 3), ("calm", 32, 0)):
        folder = tmp_path / name
        folder.mkdir()
        flags = ["--model", str(checkpoint), "--slots", str(slots), "--threads", "1"]
        made.append(Machine(folder, [*flags, "--host-bytes", str(frames * 110_000)]))
    yield made[0], made[1]
    for machine in made:
        machine.stop()


class Http:
    """Requests of one server that must succeed."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        async with self._session.post(self._url + path, json=body or {}) as reply:
            data = await reply.read()
            assert reply.status < 300, (path, reply.status, data[:500])
            return json.loads(data)

    async def get(self, path: str) -> Any:
        async with self._session.get(self._url + path) as reply:
            assert reply.status == 200, (path, reply.status, await reply.text())
            return await reply.json()

    async def stream(self, path: str, body: dict[str, Any]) -> list[int]:
        """Acknowledged token ids, as far as the connection lives."""
        told: list[int] = []
        try:
            async with self._session.post(self._url + path, json={**body, "stream": True}) as reply:
                kind = ""
                async for raw in reply.content:
                    line = raw.decode().strip()
                    if line.startswith("event:"):
                        kind = line.split(":", 1)[1].strip()
                    elif line.startswith("data:") and kind == "token":
                        told.append(json.loads(line[5:])["token_id"])
        except (aiohttp.ClientError, ConnectionError):
            pass
        return told


def _prompt(rng: random.Random) -> list[int]:
    return [rng.randrange(256) for _ in range(rng.randrange(20, 90))]


async def _hard_life(http: Http, name: str, prompt: list[int], rng: random.Random) -> None:
    """The prompt in odd pieces, with snapshots and moves in between."""
    rest = list(prompt)
    while rest:
        cut = rng.choice((1, 2, 3, 7, 16, 17, 40))
        await http.post(f"/v1/actors/{name}/append", {"token_ids": rest[:cut]})
        rest = rest[cut:]
        match rng.randrange(5):
            case 0:
                await http.post(f"/v1/actors/{name}/snapshot", {})
            case 1:
                await http.post(f"/v1/actors/{name}/hibernate", {"tier": "host"})
            case 2:
                await http.post(f"/v1/actors/{name}/hibernate", {"tier": "nvme"})
            case 3:
                await http.post(f"/v1/actors/{name}/resume", {})
            case _:
                pass


async def _passer_by(http: Http, name: str, rng: random.Random) -> None:
    """Somebody who comes, talks and goes."""
    await http.post("/v1/actors", {"name": name, "token_ids": _prompt(rng)})
    body = {"max_tokens": rng.randrange(1, 30), **SAMPLED}
    await http.post(f"/v1/actors/{name}/generate", body)
    if rng.random() < 0.5:
        await http.post(f"/v1/actors/{name}/hibernate", {"tier": "nvme"})


def _settings(index: int) -> dict[str, Any]:
    return {**(SAMPLED if index % 2 else GREEDY), "ignore_eos": True}


async def _twins(http: Http, prompts: list[list[int]]) -> list[list[int]]:
    """Everything in one call."""
    answers = []
    for index, prompt in enumerate(prompts):
        name = f"twin-{index}"
        await http.post("/v1/actors", {"name": name, "seed": 1000 + index})
        body = {"token_ids": prompt, "max_tokens": GENERATED, **_settings(index)}
        answers.append((await http.post(f"/v1/actors/{name}/generate", body))["token_ids"])
    return answers


async def test_a_hard_life_and_kill_9_change_no_token(machines: tuple[Machine, Machine]) -> None:
    rng = random.Random(17)
    prompts = [_prompt(rng) for _ in range(SUBJECTS)]
    names = [f"subject-{index}" for index in range(SUBJECTS)]
    hard, calm = machines
    url = (await asyncio.to_thread(hard.start)).url
    async with aiohttp.ClientSession() as session:
        http = Http(session, url)
        for index, name in enumerate(names):
            await http.post("/v1/actors", {"name": name, "seed": 1000 + index})
        await asyncio.gather(
            *(_hard_life(http, n, p, rng) for n, p in zip(names, prompts, strict=True)),
            *(_passer_by(http, f"passer-{i}", rng) for i in range(10)),
        )
        streams = [
            asyncio.create_task(
                http.stream(f"/v1/actors/{name}/generate", {"max_tokens": 5000, **_settings(index)})
            )
            for index, name in enumerate(names[:4])
        ]
        await asyncio.sleep(0.4)
        await asyncio.to_thread(hard.kill)
        told = [*await asyncio.gather(*streams), [], []]
    assert any(told), "the kill came before the first token"

    url = (await asyncio.to_thread(hard.start)).url
    async with aiohttp.ClientSession() as session:
        http = Http(session, url)
        said = []
        for index, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
            begin = len(prompt) + 1
            kept = (await http.get(f"/v1/actors/{name}/transcript?from={begin}"))["token_ids"]
            assert kept[: len(told[index])] == told[index], "an acknowledged token was lost"
            said.append(kept)

        async def go_on(index: int) -> None:
            while len(said[index]) < GENERATED:
                count = min(rng.choice((1, 5, 13)), GENERATED - len(said[index]))
                body = {"max_tokens": count, **_settings(index)}
                answer = await http.post(f"/v1/actors/{names[index]}/generate", body)
                said[index] = said[index] + answer["token_ids"]

        await asyncio.gather(
            *(go_on(index) for index in range(SUBJECTS)),
            *(_passer_by(http, f"late-{i}", rng) for i in range(6)),
        )
    url = (await asyncio.to_thread(calm.start)).url
    async with aiohttp.ClientSession() as session:
        expected = await _twins(Http(session, url), prompts)
    for index in range(SUBJECTS):
        assert said[index][:GENERATED] == expected[index], f"subject {index}"
