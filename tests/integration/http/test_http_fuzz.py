"""Wrong requests, many of them: never a 500, never a slot lost, never a neighbour touched."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import orjson

SAMPLED = {"temperature": 1.0, "max_tokens": 12, "ignore_eos": True, "seed": 5, "commit": False}
ROUTES = {
    "": ("name", "prompt", "token_ids", "seed", "labels", "from", "model"),
    "/a/append": ("prompt", "token_ids"),
    "/a/generate": (
        *("prompt", "token_ids", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed"),
        *("presence_penalty", "frequency_penalty", "penalty_decay", "stop", "stop_token_ids"),
        *("ignore_eos", "logprobs", "stream", "commit"),
    ),
    "/a/fork": ("count", "names", "at", "rng", "seeds", "dry_run"),
    "/a/snapshot": ("tag", "labels"),
    "/a/mutate": ("rule", "params", "select", "reason"),
    "/a/rollback": ("to", "rng", "dry_run"),
    "/a/hibernate": ("tier",),
    "/a/resume": ("tier",),
    "/a/cancel": ("turn",),
}
NUMBERS = [0, 1, 2, 3, 5, 8, -1, 0.5, 1.0, 1e-300, 1e300, 2**31, 2**53, 2**63, True, False]
TEXTS = ["", "a", "a@0", "a@1", "b@0", "gone@9", "tag", "gpu", "host", "nvme", "reseed", "inherit"]
TEXTS += ["zero", "decay", "scale", "blend", "noise", "set", "add", "\0", "é", "x" * 300, "../x"]
KEYS = [
    "alpha",
    "factor",
    "others",
    "weights",
    "from",
    "std",
    "seed",
    "layers",
    "heads",
    "families",
]


def value(rng: random.Random, depth: int = 0) -> Any:
    """Something that a field could hold, or not."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind < 2:
        return rng.choice(NUMBERS)
    if kind < 4:
        return rng.choice(TEXTS)
    if kind == 4:
        return None
    if kind < 7:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(KEYS): value(rng, depth + 1) for _ in range(rng.randrange(3))}


def likely(rng: random.Random, field: str) -> Any:
    """Mostly what fits, so that the request gets deep."""
    fits = {
        "token_ids": [rng.randrange(-1, 275) for _ in range(rng.randrange(4))],
        "stop_token_ids": [rng.randrange(275)],
        "max_tokens": rng.randrange(0, 6),
        "count": rng.randrange(0, 4),
        "names": [rng.choice(["x", "y", "z", "a"])],
        "seeds": [rng.randrange(9)],
        "stop": [rng.choice("abe ")],
        "labels": {rng.choice("kl"): "v"},
        "params": {rng.choice(KEYS): value(rng, 1)},
        "select": {rng.choice(["layers", "heads", "families"]): [rng.choice([0, 1, 9, "h", "s"])]},
        "rule": rng.choice(["zero", "decay", "scale", "blend", "noise", "set", "add"]),
        "name": rng.choice(["x", "y", "z"]),
        "at": rng.choice([0, 1, 3, "a@0"]),
        "to": rng.choice([0, 1, 3, "a@0", "tag"]),
    }
    return fits[field] if field in fits and rng.random() < 0.7 else value(rng)


async def test_whatever_is_sent_the_server_stays_whole(boot: Any) -> None:
    rng = random.Random(20260101)
    async with boot(slot_wait_s=0.5, fork_count=4) as server:
        for name in ("a", "b"):
            await server.ask("POST", "/v1/actors", {"name": name, "prompt": "hello", "seed": 3})
        alone = await server.ask("POST", "/v1/actors/b/generate", SAMPLED)

        async def one() -> int:
            path = rng.choice(list(ROUTES))
            fields = rng.sample(ROUTES[path], rng.randrange(min(4, len(ROUTES[path])) + 1))
            body = orjson.dumps({field: likely(rng, field) for field in fields})
            headers = {"Content-Type": "application/json"}
            url = f"{server.url}/v1/actors{path}"
            async with server.session.post(url, data=body, headers=headers) as answer:
                text = await answer.text()
            assert answer.status != 500, (path, body, text)
            assert "internal" not in text, (path, body, text)
            return int(answer.status)

        seen: set[int] = set()
        for _ in range(40):
            seen.update(await asyncio.gather(*(one() for _ in range(10))))
        assert {200, 201, 404, 409, 422} & seen >= {200, 201, 422}
        canary = await server.ask("POST", "/v1/actors/b/generate", SAMPLED)
        assert canary["token_ids"] == alone["token_ids"]
        assert (await server.ask("GET", "/v1/actors/b"))["position"] == 6
        for tier in ("host", "nvme"):
            await server.ask("POST", "/v1/tiers/evict", {"from": "gpu", "to": tier})
        gpu = (await server.ask("GET", "/v1/tiers"))["data"][0]
        assert (gpu["slots"]["used"], gpu["actors"]) == (0, 0)
