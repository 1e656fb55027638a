"""Turns over HTTP: streams and answers, neighbours, clients that leave, wrong requests."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

SAY = "/v1/actors/alice/generate"
SAMPLED = {"temperature": 1.0, "max_tokens": 24, "ignore_eos": True, "seed": 5}


async def create(server: Any, *names: str, prompt: str = "hello") -> None:
    for name in names:
        await server.ask("POST", "/v1/actors", {"name": name, "prompt": prompt, "seed": 3})


async def test_a_stream_says_what_one_answer_says(boot: Any) -> None:
    async with boot() as server:
        await create(server, "alice", "bob")
        whole = await server.ask("POST", SAY, {**SAMPLED, "prompt": "x", "logprobs": 1})
        events = await server.events(
            "/v1/actors/bob/generate", {**SAMPLED, "prompt": "x", "logprobs": 1}
        )
        tokens = [data for name, data in events if name == "token"]
        name, turn = events[-1]
        assert name == "turn"
        assert [one["token_id"] for one in tokens] == whole["token_ids"] == turn["token_ids"]
        assert "".join(one["text"] for one in tokens) == whole["text"] == turn["text"]
        assert [one["index"] for one in tokens] == list(range(24))
        assert [one["position"] for one in tokens] == list(range(7, 31))
        assert [one["logprobs"] for one in tokens] == whole["logprobs"]
        assert whole["usage"] == {"prompt_tokens": 1, "completion_tokens": 24}
        assert whole["position"] == whole["durable_position"] == 31
        words = await server.ask("GET", "/v1/actors/alice/transcript?from=7")
        assert words["token_ids"] == whole["token_ids"]


async def test_a_crowd_says_what_each_says_alone(boot: Any) -> None:
    names = [f"a{n}" for n in range(12)]  # three times the slots
    async with boot() as server:
        await create(server, *names)
        alone = [
            (await server.ask("POST", f"/v1/actors/{n}/generate", {**SAMPLED, "commit": False}))
            for n in names
        ]
        crowd = await asyncio.gather(
            *(server.ask("POST", f"/v1/actors/{n}/generate", SAMPLED) for n in names)
        )
        assert [t["token_ids"] for t in crowd] == [t["token_ids"] for t in alone]


async def test_a_turn_that_is_not_committed_changes_nothing(boot: Any) -> None:
    async with boot() as server:
        await create(server, "alice")
        before = await server.ask("GET", "/v1/actors/alice")
        await server.ask("POST", SAY, {**SAMPLED, "prompt": "x", "commit": False})
        after = await server.ask("GET", "/v1/actors/alice")
        assert (after["position"], after["generation"]) == (6, before["generation"])


async def test_stops_cut_the_text_only(boot: Any) -> None:
    async with boot() as server:
        await create(server, "alice", "bob")
        free = await server.ask("POST", SAY, {**SAMPLED, "max_tokens": 60})
        stop = free["text"][10:12]
        cut = await server.ask(
            "POST", "/v1/actors/bob/generate", {**SAMPLED, "max_tokens": 60, "stop": stop}
        )
        assert cut["finish_reason"] == "stop"
        assert cut["text"] == free["text"][: free["text"].index(stop)]
        assert cut["token_ids"] == free["token_ids"][: len(cut["token_ids"])]


async def test_a_key_makes_a_turn_happen_once(boot: Any) -> None:
    async with boot() as server:
        await create(server, "alice")
        once = {"headers": {"Idempotency-Key": "turn-1"}}
        first = await server.ask("POST", SAY, SAMPLED, **once)
        again = await server.ask("POST", SAY, SAMPLED, **once)
        assert again["token_ids"] == first["token_ids"]
        assert again["id"] == first["id"]
        position = (await server.ask("GET", "/v1/actors/alice"))["position"]
        assert position == first["position"]


async def test_cancel_ends_a_turn_at_a_committed_token(boot: Any, slow_toy: Any) -> None:
    go = threading.Semaphore(3)
    slow_toy.gate = staticmethod(go.acquire)
    async with boot() as server:
        body = {**SAMPLED, "max_tokens": 1000}
        go.release(50)
        await create(server, "alice")
        running = asyncio.create_task(server.ask("POST", SAY, body))

        await server.until_status("alice", "running")
        asked = await server.ask("POST", "/v1/actors/alice/cancel")
        go.release(1000)
        turn = await running
        assert (turn["id"], turn["finish_reason"]) == (asked["turn"], "cancelled")
        assert len(turn["token_ids"]) < 1000
        actor = await server.ask("GET", "/v1/actors/alice")
        assert (actor["status"], actor["position"]) == ("idle", turn["position"])
        quiet = await server.refused("POST", "/v1/actors/alice/cancel")
        assert quiet == (409, "invalid_transition")


async def leave(server: Any, stream: bool) -> asyncio.StreamWriter:
    """Ask for a very long turn on a connection of its own."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = json.dumps({**SAMPLED, "max_tokens": 100_000, "stream": stream}).encode()
    head = f"POST {SAY} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return writer


async def test_a_client_that_leaves_ends_its_turn_and_no_other(boot: Any) -> None:
    async with boot() as server:
        await create(server, "alice", "bob")
        alone = await server.ask("POST", "/v1/actors/bob/generate", {**SAMPLED, "commit": False})

        for stream in (False, True):
            writer = await leave(server, stream)
            await server.until_status("alice", "running")
            writer.transport.abort()
            canary = await server.ask(
                "POST", "/v1/actors/bob/generate", {**SAMPLED, "commit": False}
            )
            await server.until_status("alice", "idle")
            assert canary["token_ids"] == alone["token_ids"]
        position = (await server.ask("GET", "/v1/actors/alice"))["position"]
        assert 6 < position < 100_000
        said = await server.ask("GET", "/v1/actors/alice/transcript")
        assert len(said["token_ids"]) == position


async def test_a_client_that_reads_nothing_stalls_nobody(boot: Any) -> None:
    async with boot() as server:
        await create(server, "alice", "bob")
        writer = await leave(server, stream=True)
        async with asyncio.timeout(20):
            turn = await server.ask("POST", "/v1/actors/bob/generate", SAMPLED)
        assert len(turn["token_ids"]) == 24
        writer.transport.abort()


async def test_wrong_requests_touch_no_neighbour(boot: Any) -> None:
    async with boot() as server:
        await create(server, "alice", "bob")
        alone = await server.ask("POST", "/v1/actors/bob/generate", {**SAMPLED, "commit": False})
        wrong: list[dict[str, Any]] = [
            {"token_ids": [999_999]},
            {"token_ids": [-1]},
            {"token_ids": ["a"]},
            {"max_tokens": 0},
            {"max_tokens": 2**31 - 1},
            {"temperature": -1},
            {"stop_token_ids": [999_999]},
            {"prompt": 5},
            {"nonsense": 1},
        ]
        canary = asyncio.create_task(server.ask("POST", "/v1/actors/bob/generate", SAMPLED))
        for body in wrong:
            assert await server.refused("POST", SAY, body) == (422, "invalid_request"), body
        assert (await canary)["token_ids"] == alone["token_ids"]
        assert (await server.ask("GET", "/v1/actors/alice"))["position"] == 6
        slots = (await server.ask("GET", "/v1/tiers"))["data"][0]["slots"]
        assert slots["used"] <= 2


async def test_a_poisoned_actor_is_told_and_set_apart(boot: Any) -> None:
    poison = 258
    async with boot() as server:
        await create(server, "alice", "bob")
        events = await server.events(SAY, {"token_ids": [poison], "max_tokens": 4})
        assert [name for name, _ in events] == ["error", "turn"]
        assert events[0][1]["code"] == "actor_quarantined"
        assert events[1][1]["finish_reason"] == "error"
        actor = await server.ask("GET", "/v1/actors/alice")
        assert actor["status"] == "quarantined"
        assert actor["quarantine"]
        assert await server.refused("POST", SAY, {}) == (409, "actor_quarantined")
        await server.ask("POST", "/v1/actors/bob/generate", SAMPLED)
        cured = await server.ask("POST", "/v1/actors/alice/rollback", {"to": 6})
        assert cured["status"] != "quarantined"
        await server.ask("POST", SAY, SAMPLED)


async def test_a_full_mailbox_says_busy(boot: Any, slow_toy: Any) -> None:
    gate = threading.Event()
    gate.set()
    slow_toy.gate = staticmethod(gate.wait)
    async with boot(mailbox=1) as server:
        await create(server, "alice")
        gate.clear()
        asked = [asyncio.create_task(server.ask("POST", SAY, {"max_tokens": 1})) for _ in range(2)]

        async def full() -> bool:
            async with server.session.get(server.url + "/metrics") as answer:
                return "statevisor_mailbox_depth 1.0" in await answer.text()

        await server.until(full)
        assert await server.refused("POST", SAY, {"max_tokens": 1}) == (409, "actor_busy")
        # snapshots and forks do not wait for the turn
        await server.ask("POST", "/v1/actors/alice/snapshot", {"tag": "t"})
        await server.ask("POST", "/v1/actors/alice/fork", {})
        gate.set()
        await asyncio.gather(*asked)
