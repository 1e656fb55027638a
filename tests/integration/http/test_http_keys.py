"""Idempotency-Keys of what has no transaction of its own, over the real store."""

from __future__ import annotations

import asyncio
from typing import Any

KEY = {"Idempotency-Key": "once"}
DOWN = {"from": "gpu", "to": "nvme"}


async def test_an_eviction_is_done_once(boot: Any) -> None:
    async with boot() as server:
        await server.ask("POST", "/v1/actors", {"name": "alice", "prompt": "hello"})
        first = await server.ask("POST", "/v1/tiers/evict", DOWN, headers=KEY)
        await server.ask("POST", "/v1/actors/alice/resume")

        again = await server.ask("POST", "/v1/tiers/evict", DOWN, headers=KEY)

        assert first["moved"] == ["alice"]
        assert again == first
        assert (await server.ask("GET", "/v1/actors/alice"))["tier"] == "gpu"
        other = {**DOWN, "to": "host"}
        assert await server.refused("POST", "/v1/tiers/evict", other, headers=KEY) == (
            422,
            "idempotency_mismatch",
        )


async def test_who_comes_with_a_key_while_it_is_used_is_told_to_come_again(boot: Any) -> None:
    async with boot() as server:
        await server.ask("POST", "/v1/actors", {"name": "alice", "prompt": "hello"})
        url, body = server.url + "/v1/actors/alice/fork", {"count": 2}

        async def fork() -> tuple[int, bool, bool]:
            async with server.session.post(url, json=body, headers=KEY) as answer:
                named = answer.headers
                return answer.status, "Retry-After" in named, "x-should-retry" in named

        found = sorted(await asyncio.gather(*[fork() for _ in range(6)]))

        assert found[0] == (201, False, False)
        assert set(found[1:]) <= {(201, False, False), (409, True, False)}
        again = await server.ask("POST", "/v1/actors/alice/fork", body, headers=KEY)
        assert len(again["data"]) == 2
        assert len((await server.ask("GET", "/v1/actors"))["data"]) == 3


async def test_a_key_outlives_the_process(boot: Any) -> None:
    async with boot() as server:
        await server.ask("POST", "/v1/actors", {"name": "alice", "prompt": "hello"})
        first = await server.ask("POST", "/v1/actors/alice/hibernate", {}, headers=KEY)
    async with boot() as server:
        await server.ask("POST", "/v1/actors/alice/resume")
        again = await server.ask("POST", "/v1/actors/alice/hibernate", {}, headers=KEY)

        assert again == first
        assert (await server.ask("GET", "/v1/actors/alice"))["tier"] == "gpu"


async def test_a_drain_tells_again_what_it_did(boot: Any) -> None:
    async with boot() as server:
        await server.ask("POST", "/v1/actors", {"name": "alice", "prompt": "hello"})
        first = await server.ask("POST", "/v1/admin/drain", {}, headers=KEY)

        assert first["hibernated"] == 1
        assert await server.ask("POST", "/v1/admin/drain", {}, headers=KEY) == first
        assert (await server.ask("POST", "/v1/admin/drain", {}))["hibernated"] == 0


async def test_a_proof_is_told_again(boot: Any) -> None:
    async with boot() as server:
        await server.ask("POST", "/v1/actors", {"name": "alice", "prompt": "hello"})
        first = await server.ask("POST", "/v1/versions/alice@0/verify", {}, headers=KEY)
        await server.ask("DELETE", "/v1/actors/alice")

        again = await server.ask("POST", "/v1/versions/alice@0/verify", {}, headers=KEY)

        assert (again["ok"], again) == (True, first)
