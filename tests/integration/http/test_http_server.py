"""The process: while it loads, when it must stop, and after it was stopped."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from statevisor.api import compose
from statevisor.hypervisor.errors import CheckpointInvalid, Unavailable

LONG = {"max_tokens": 100_000, "ignore_eos": True, "temperature": 1.0}


async def test_it_answers_while_it_loads(boot: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    build, loaded = compose.build_guest, threading.Event()

    def slowly(config: Any) -> Any:
        loaded.wait()
        return build(config)

    monkeypatch.setattr(compose, "build_guest", slowly)
    async with boot(ready=False) as server:
        assert (await server.ask("GET", "/health"))["status"] == "ok"
        assert await server.refused("GET", "/ready") == (503, "model_loading")
        assert await server.refused("POST", "/v1/actors", {}) == (503, "model_loading")
        loaded.set()

        await server.until(server.ready)
        await server.ask("POST", "/v1/actors", {})


async def test_a_model_that_does_not_load_ends_the_process_with_its_error(
    boot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(config: Any) -> Any:
        raise CheckpointInvalid("broken")

    with monkeypatch.context() as broken:
        broken.setattr(compose, "build_guest", fail)
        with pytest.raises(CheckpointInvalid, match="broken"):
            async with boot():
                pass
    async with boot() as server:  # nothing was left open: the folder can be used
        await server.ask("GET", "/v1/actors")


async def test_a_stop_ends_turns_at_a_committed_token_and_nothing_is_lost(boot: Any) -> None:
    async with boot() as server:
        await server.ask("POST", "/v1/actors", {"name": "alice", "prompt": "hi", "seed": 1})
        stream = asyncio.create_task(server.events("/v1/actors/alice/generate", LONG))
        await server.until_status("alice", "running")
        server.stop.set()
        events = await stream
        await server.task
    name, turn = events[-1]
    assert name == "turn"
    assert turn["finish_reason"] == "cancelled"
    said = [data["token_id"] for kind, data in events if kind == "token"]
    assert said == turn["token_ids"]
    async with boot() as server:
        alice = await server.ask("GET", "/v1/actors/alice")
        assert (alice["position"], alice["status"], alice["tier"]) == (
            turn["position"],
            "hibernated",
            "nvme",
        )
        words = await server.ask("GET", "/v1/actors/alice/transcript?from=3")
        assert words["token_ids"] == said


async def test_a_restart_changes_no_token(boot: Any) -> None:
    more = {"max_tokens": 20, "ignore_eos": True, "temperature": 1.0}
    async with boot() as server:
        for name in ("alice", "twin"):
            await server.ask("POST", "/v1/actors", {"name": name, "prompt": "hi", "seed": 9})
        whole = await server.ask("POST", "/v1/actors/twin/generate", {**more, "max_tokens": 40})
        first = await server.ask("POST", "/v1/actors/alice/generate", more)
    async with boot() as server:
        second = await server.ask("POST", "/v1/actors/alice/generate", more)
        assert first["token_ids"] + second["token_ids"] == whole["token_ids"]


async def test_a_drained_server_reads_but_takes_no_work(boot: Any) -> None:
    async with boot() as server:
        await server.ask("POST", "/v1/actors", {"name": "alice", "prompt": "hi"})
        told = await server.ask("POST", "/v1/admin/drain")
        assert (told["object"], told["failed"]) == ("drain", [])
        assert await server.refused("GET", "/ready") == (503, "draining")
        assert await server.refused("POST", "/v1/actors", {}) == (503, "draining")
        busy = await server.refused("POST", "/v1/actors/alice/generate", {})
        assert busy == (503, "draining")
        assert (await server.ask("GET", "/v1/actors/alice"))["tier"] == "nvme"


async def test_two_servers_do_not_share_a_folder(boot: Any) -> None:
    async with boot():
        with pytest.raises(Unavailable):
            async with boot(ready=False) as second:
                await second.task


async def test_a_taken_port_is_told(boot: Any, tmp_path: Path) -> None:
    async with boot() as server:
        with pytest.raises(Unavailable, match=str(server.port)):
            async with boot(port=server.port, data=tmp_path / "other"):
                pass


async def test_a_token_is_asked_for(boot: Any) -> None:
    async with boot(token="t") as server:
        assert await server.refused("GET", "/v1/actors") == (401, "invalid_api_key")
        bearer = {"headers": {"Authorization": "Bearer t"}}
        assert (await server.ask("GET", "/v1/actors", **bearer))["data"] == []


async def test_a_slow_generation_does_not_delay_a_read(boot: Any, slow_toy: Any) -> None:
    """The engine is stuck in one step: everything that does not step still answers."""
    gate = threading.Event()
    gate.set()
    slow_toy.gate = staticmethod(gate.wait)
    async with boot() as server:
        await server.ask("POST", "/v1/actors", {"name": "alice", "prompt": "hi"})
        gate.clear()
        stuck = asyncio.create_task(
            server.ask("POST", "/v1/actors/alice/generate", {"max_tokens": 1})
        )
        async with asyncio.timeout(10):
            await server.until_status("alice", "running")
            for path in ("/health", "/ready", "/v1/actors", "/v1/tiers", "/v1/models"):
                await server.ask("GET", path)
        assert not stuck.done()
        gate.set()
        await stuck
