"""HTTP in processes of its own: the same answers, and nobody else is harmed when one dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from statevisor.api.demo.machine import Machine

GENERATE = {"max_tokens": 20, "ignore_eos": True}


def children(of: int) -> list[int]:
    """Worker processes of a process, oldest first."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
            words = status.with_name("cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"\nPPid:\t{of}\n" in text and b"statevisor.api.workers.process" in words:
            found.append(int(status.parent.name))
    return sorted(found)


async def test_two_workers_are_one_server(boot: Any) -> None:
    async with boot(workers=2) as server:
        assert len(children(os.getpid())) == 2
        # a connection of its own for each request, so that both workers are asked
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True), base_url=server.url
        ) as apart:
            for n in range(8):
                async with apart.post("/v1/actors", json={"name": f"a{n}", "prompt": "x"}) as made:
                    assert made.status == 201
            turns = await asyncio.gather(
                *(server.events(f"/v1/actors/a{n}/generate", GENERATE) for n in range(8))
            )
        texts = {turn[-1][1]["text"] for turn in turns}
        assert all(len(turn) == 21 for turn in turns)
        assert len(texts) == 1  # the same prompt, greedy
        async with server.session.get(server.url + "/metrics") as answer:
            page = await answer.text()
        counted = (
            'statevisor_http_requests_total{method="POST",route="/v1/actors",status="201"} 8.0'
        )
        assert counted in page
        assert "statevisor_generation_tokens_total 160.0" in page
    assert children(os.getpid()) == []


@pytest.mark.parametrize("workers", [0, 1])
async def test_what_is_no_request_is_a_problem(boot: Any, workers: int) -> None:
    async with boot(workers=workers) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert b"application/problem+json" in head
        assert json.loads(body)["code"] == "invalid_request"
        async with server.session.get(server.url + "/metrics") as answer:
            page = await answer.text()
        assert 'http_requests_total{method="UNKNOWN",route="none",status="400"} 1.0' in page


async def test_a_worker_that_dies_is_replaced_and_harms_nobody(boot: Any, slow_toy: Any) -> None:
    async with boot(workers=1) as server:
        await server.ask("POST", "/v1/actors", {"name": "a", "prompt": "x"})
        before = await server.ask("POST", "/v1/actors/a/generate", GENERATE)
        (worker,) = children(os.getpid())
        os.kill(worker, signal.SIGKILL)

        async def replaced() -> bool:
            return worker not in children(os.getpid()) and await server.ready()

        await server.until(replaced)
        await server.ask("POST", "/v1/actors", {"name": "b", "prompt": "x"})
        again = await server.ask("POST", "/v1/actors/b/generate", GENERATE)
        assert again["token_ids"] == before["token_ids"]
        assert (await server.ask("GET", "/v1/actors/a"))["position"] == before["position"]


async def test_a_turn_whose_worker_dies_ends_as_cancelled(boot: Any) -> None:
    async with boot(workers=1) as server:
        await server.ask("POST", "/v1/actors", {"name": "a", "prompt": "x"})
        (worker,) = children(os.getpid())
        # far more than come until the worker is missed
        body = {"max_tokens": 100_000, "ignore_eos": True, "stream": True}
        async with server.session.post(server.url + "/v1/actors/a/generate", json=body) as answer:
            await answer.content.readuntil(b"event: token")
            os.kill(worker, signal.SIGKILL)
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
        await server.until(server.ready)
        await server.until_status("a", "idle")
        read = await server.ask("GET", "/v1/actors/a/transcript")
        assert 1 < len(read["token_ids"]) < 100_001


async def test_a_drain_through_one_worker_stops_them_all(boot: Any) -> None:
    async with boot(workers=2) as server:
        await server.ask("POST", "/v1/actors", {"name": "a", "prompt": "x"})
        await server.ask("POST", "/v1/admin/drain")
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True), base_url=server.url
        ) as apart:
            for _ in range(8):
                async with apart.post("/v1/actors", json={"name": "late"}) as refused:
                    assert (refused.status, (await refused.json())["code"]) == (503, "draining")


def test_workers_end_with_an_engine_that_is_killed(tmp_path: Path) -> None:
    machine = Machine(tmp_path, ["--workers", "2"])
    client = machine.start()
    try:
        client.post("/v1/actors", {"name": "a", "prompt": "x"})
        assert machine.pid is not None
        workers = children(machine.pid)
        assert len(workers) == 2
    finally:
        machine.kill()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)
