"""Slots, host memory and disk all full, over HTTP: clear answers, and nothing is lost."""

from __future__ import annotations

from typing import Any

STORY = "once upon a time there was a fox"


async def fill_disk(server: Any) -> list[str]:
    """Hibernate actors until the disk takes no more; the last one is still awake."""
    names: list[str] = []
    while len(names) < 200:
        name = f"a{len(names)}"
        names.append(name)
        await server.ask("POST", "/v1/actors", {"name": name, "prompt": f"{STORY} {name}"})
        async with server.session.post(
            f"{server.url}/v1/actors/{name}/hibernate", json={"tier": "nvme"}
        ) as answer:
            if answer.status != 200:
                problem = await answer.json()
                assert (answer.status, problem["code"]) == (429, "quota_exceeded")
                assert int(answer.headers["Retry-After"]) > 0
                return names
    raise AssertionError("the disk is never full")


async def test_with_every_tier_full_requests_wait_then_are_refused_and_nothing_is_lost(
    boot: Any,
) -> None:
    flags = {"slots": 1, "host_bytes": 80, "nvme_bytes": 1 << 20, "slot_wait_s": 0.1}
    async with boot(**flags) as server:
        names = await fill_disk(server)
        last = names[-1]
        assert (await server.ask("GET", f"/v1/actors/{last}"))["status"] == "idle"
        await server.ask("POST", f"/v1/actors/{last}/hibernate", {"tier": "host"})
        await server.ask("POST", "/v1/actors", {"name": "awake", "prompt": STORY})

        body = {"max_tokens": 4, "ignore_eos": True}
        url = f"{server.url}/v1/actors/a0/generate"
        async with server.session.post(url, json=body) as answer:
            assert (answer.status, (await answer.json())["code"]) == (503, "no_free_slot")
            assert int(answer.headers["Retry-After"]) > 0
        told = await server.ask("POST", "/v1/actors/awake/generate", body)
        assert len(told["token_ids"]) == 4  # the journal goes on

    async with boot(**{**flags, "nvme_bytes": 4 << 20}) as server:
        assert len(names) > 20
        for name in ("a0", names[1], last, "awake"):  # those that had no room were journalled
            await server.ask("POST", f"/v1/actors/{name}/generate", body)
