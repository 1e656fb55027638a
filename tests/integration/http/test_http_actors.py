"""Actors over HTTP, down to the database and back."""

from __future__ import annotations

from typing import Any


async def test_an_actor_lives(boot: Any) -> None:
    async with boot() as server:
        alice = await server.ask(
            "POST", "/v1/actors", {"name": "alice", "prompt": "hi", "seed": 7, "labels": {"k": "v"}}
        )
        # BOS and two bytes; nothing was sampled
        assert (alice["position"], alice["seed"], alice["labels"]) == (3, 7, {"k": "v"})
        by_id = await server.ask("GET", f"/v1/actors/{alice['id']}")
        assert by_id == await server.ask("GET", "/v1/actors/alice")
        changed = await server.ask("PATCH", "/v1/actors/alice", {"name": "al", "ttl": 60})
        assert (changed["name"], changed["ttl"], changed["id"]) == ("al", 60, alice["id"])
        assert changed["generation"] > alice["generation"]
        cleared = await server.ask("PATCH", "/v1/actors/al", {"ttl": None, "labels": {}})
        assert (cleared["ttl"] or None, cleared["labels"]) == (None, {})
        assert await server.refused("GET", "/v1/actors/alice") == (404, "actor_not_found")
        await server.ask("DELETE", "/v1/actors/al")
        for path in ("al", alice["id"]):
            assert await server.refused("GET", f"/v1/actors/{path}") == (404, "actor_not_found")
        again = await server.ask("POST", "/v1/actors", {"name": "al"})
        assert again["id"] != alice["id"]


async def test_a_list_comes_in_pages_and_can_be_filtered(boot: Any) -> None:
    async with boot() as server:
        for number in range(5):
            label = {"parity": "odd" if number % 2 else "even"}
            await server.ask("POST", "/v1/actors", {"name": f"a{number}", "labels": label})
        seen, after = [], ""
        while True:
            page = await server.ask("GET", f"/v1/actors?limit=2{after}")
            seen += [actor["name"] for actor in page["data"]]
            assert page["last_id"] == page["data"][-1]["id"]
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
        assert seen == [f"a{number}" for number in range(5)]
        odd = await server.ask("GET", "/v1/actors?label=parity=odd")
        assert [actor["name"] for actor in odd["data"]] == ["a1", "a3"]
        named = await server.ask("GET", "/v1/actors?q=a4&label=parity")
        assert [actor["name"] for actor in named["data"]] == ["a4"]
        assert (await server.ask("GET", "/v1/actors?model=other"))["data"] == []
        page = await server.ask("GET", "/v1/actors?limit=2")
        await server.ask("DELETE", "/v1/actors/a1")  # with whom the page ended
        rest = await server.ask("GET", f"/v1/actors?after={page['last_id']}")
        assert [actor["name"] for actor in rest["data"]] == ["a2", "a3", "a4"]
        assert await server.refused("GET", "/v1/actors?after=a1") == (400, "invalid_cursor")


async def test_a_key_makes_a_retry_harmless(boot: Any) -> None:
    async with boot() as server:
        once = {"headers": {"Idempotency-Key": "k1"}}
        first = await server.ask("POST", "/v1/actors", {"prompt": "hi", "seed": 1}, **once)
        again = await server.ask("POST", "/v1/actors", {"seed": 1, "prompt": "hi"}, **once)
        assert again["id"] == first["id"]
        other = await server.refused("POST", "/v1/actors", {"prompt": "ho", "seed": 1}, **once)
        assert other == (422, "idempotency_mismatch")
        assert len((await server.ask("GET", "/v1/actors"))["data"]) == 1


async def test_if_match_refuses_what_is_stale(boot: Any) -> None:
    async with boot() as server:
        alice = await server.ask("POST", "/v1/actors", {"name": "alice", "prompt": "hi"})
        fresh = {"headers": {"If-Match": f'"{alice["generation"]}"'}}
        changed = await server.ask("PATCH", "/v1/actors/alice", {"pinned": True}, **fresh)
        for method, path, body in (
            ("PATCH", "", {"pinned": False}),
            ("POST", "/append", {"prompt": "x"}),
            ("POST", "/generate", {"max_tokens": 1}),
            ("POST", "/fork", {}),
            ("POST", "/snapshot", {}),
            ("POST", "/rollback", {"to": 1}),
            ("POST", "/mutate", {"rule": "zero"}),
            ("DELETE", "", None),
        ):
            found = await server.refused(method, f"/v1/actors/alice{path}", body, **fresh)
            assert found == (412, "generation_conflict"), path
        after = await server.ask("GET", "/v1/actors/alice")
        assert (after["pinned"], after["generation"]) == (True, changed["generation"])


async def test_forks_are_all_or_none(boot: Any) -> None:
    async with boot() as server:
        await server.ask("POST", "/v1/actors", {"name": "alice", "prompt": "hello"})
        taken = {"names": ["bob", "alice"]}
        refused = await server.refused("POST", "/v1/actors/alice/fork", taken)
        assert refused == (409, "actor_exists")
        assert (await server.refused("GET", "/v1/actors/bob"))[0] == 404
        forks = await server.ask("POST", "/v1/actors/alice/fork", {"count": 8, "at": 3})
        assert len({child["id"] for child in forks["data"]}) == 8
        assert {child["position"] for child in forks["data"]} == {3}
        assert len({child["seed"] for child in forks["data"]}) == 8
        same = await server.ask("POST", "/v1/actors/alice/fork", {"count": 2, "rng": "inherit"})
        assert len({child["seed"] for child in same["data"]}) == 1
        assert await server.refused("POST", "/v1/actors/alice/fork", {"at": 99}) != (
            500,
            "internal",
        )


async def test_an_actor_moves_between_tiers(boot: Any) -> None:
    async with boot() as server:
        await server.ask("POST", "/v1/actors", {"name": "alice", "prompt": "hello"})
        for tier in ("host", "nvme"):
            asleep = await server.ask("POST", "/v1/actors/alice/hibernate", {"tier": tier})
            assert (asleep["status"], asleep["tier"]) == ("hibernated", tier)
            again = await server.ask("POST", "/v1/actors/alice/hibernate", {"tier": tier})
            assert again["tier"] == tier
            awake = await server.ask("POST", "/v1/actors/alice/resume")
            assert (awake["status"], awake["tier"]) == ("idle", "gpu")
        tiers = (await server.ask("GET", "/v1/tiers"))["data"]
        assert [tier["tier"] for tier in tiers] == ["gpu", "host", "nvme"]
        assert tiers[0]["slots"] == {"capacity": 4, "used": 1}
        told = await server.ask(
            "POST", "/v1/tiers/evict", {"from": "gpu", "to": "nvme", "dry_run": True}
        )
        assert (told["moved"], told["bytes"]) == (["alice"], 80)
        assert (await server.ask("GET", "/v1/actors/alice"))["tier"] == "gpu"
        done = await server.ask("POST", "/v1/tiers/evict", {"from": "gpu", "to": "nvme"})
        assert done["moved"] == ["alice"]
        assert (await server.ask("GET", "/v1/actors/alice"))["tier"] == "nvme"


async def test_rollback_goes_back_and_keeps_the_branch(boot: Any) -> None:
    async with boot() as server:
        await server.ask("POST", "/v1/actors", {"name": "alice", "prompt": "hello"})
        await server.ask("POST", "/v1/actors/alice/generate", {"max_tokens": 6, "ignore_eos": True})
        before = await server.ask("GET", "/v1/actors/alice/transcript")
        back = await server.ask("POST", "/v1/actors/alice/rollback", {"to": 6, "rng": "inherit"})
        assert back["position"] == 6
        again = await server.ask(
            "POST", "/v1/actors/alice/generate", {"max_tokens": 6, "ignore_eos": True}
        )
        assert again["token_ids"] == before["token_ids"][6:]
        graph = await server.ask("GET", "/v1/actors/alice/lineage?direction=both")
        assert {"create", "turn", "rollback"} <= {node["op"] for node in graph["nodes"]}


async def test_a_dry_run_tells_what_is_then_replayed(boot: Any) -> None:
    async with boot() as server:
        await server.ask("POST", "/v1/actors", {"name": "alice", "prompt": "once upon a time"})
        await server.ask("POST", "/v1/actors/alice/generate", {"max_tokens": 30})
        before = await server.ask("GET", "/v1/actors/alice")

        told = await server.ask("POST", "/v1/actors/alice/rollback", {"to": 25, "dry_run": True})

        assert await server.ask("GET", "/v1/actors/alice") == before
        assert (told["source"], told["tokens"], told["bound"]) == ("empty", 24, "dense")
        replayed = await replayed_tokens(server)
        await server.ask("POST", "/v1/actors/alice/rollback", {"to": 25})
        await server.ask("POST", "/v1/actors/alice/resume")
        assert await replayed_tokens(server) - replayed == told["tokens"]


async def test_actors_that_only_the_catalog_knows_are_counted_too(boot: Any) -> None:
    hibernated = 'statevisor_actors{status="hibernated"}'
    async with boot() as server:
        for name in ("alice", "bob"):
            await server.ask("POST", "/v1/actors", {"name": name, "prompt": "once"})
        assert await metric(server, hibernated) == 0
    async with boot(recover_actors=0) as server:
        assert await metric(server, hibernated) == 2
        await server.ask("POST", "/v1/actors/alice/resume")
        assert await metric(server, hibernated) == 1


async def replayed_tokens(server: Any) -> float:
    return await metric(server, "statevisor_replayed_tokens")


async def metric(server: Any, begins: str) -> float:
    async with server.session.get(server.url + "/metrics") as answer:
        page = await answer.text()
    (line,) = [one for one in page.splitlines() if one.startswith(begins)]
    return float(line.split()[-1])
