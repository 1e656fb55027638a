"""Where versions come from, over HTTP: found, proved, drawn as a whole."""

from __future__ import annotations

import json
from typing import Any


async def family(server: Any) -> None:
    """alice talks, is tagged, changed; bob is forked from the tag and takes alice in."""
    await server.ask("POST", "/v1/actors", {"name": "alice", "prompt": "hello", "seed": 1})
    await server.ask("POST", "/v1/actors/alice/append", {"prompt": " world"})
    await server.ask(
        "POST", "/v1/actors/alice/snapshot", {"tag": "best", "labels": {"team": "a", "use": "x"}}
    )
    change = {"rule": "decay", "params": {"alpha": 0.5}, "agent": "ann"}
    await server.ask("POST", "/v1/actors/alice/mutate", change)
    await server.ask("POST", "/v1/actors/alice/fork", {"names": ["bob"], "at": "best"})
    blend = {"rule": "blend", "params": {"others": ["alice@3"], "weights": [0.5]}, "agent": "ann"}
    await server.ask("POST", "/v1/actors/bob/mutate", blend)


async def handles(server: Any, query: str) -> list[str]:
    found = await server.ask("GET", f"/v1/versions?{query}")
    return [one["handle"] for one in found["data"]]


async def test_versions_are_found(boot: Any) -> None:
    async with boot() as server:
        await family(server)
        assert await handles(server, "tag=best") == ["alice@2"]
        assert await handles(server, "label=team=a") == ["alice@2"]
        assert await handles(server, "label=team=b") == []
        assert await handles(server, "agent=ann") == ["alice@3", "bob@1"]
        assert await handles(server, "op=fork") == ["bob@0"]
        first = await server.ask("GET", "/v1/versions?limit=2")
        assert first["has_more"]
        rest = await handles(server, f"after={first['last_id']}")
        assert len(rest) == 4
        behind_none = await server.refused("GET", "/v1/versions?after=carol@0")
        assert behind_none == (400, "invalid_cursor")
        made = (await server.ask("GET", "/v1/versions/alice@3"))["created_at"]
        assert (await handles(server, f"since={made}"))[0] == "alice@3"
        head = await server.ask("GET", f"/v1/actors/alice/head?at={made}")
        assert head["handle"] == "alice@3"
        early = await server.refused("GET", "/v1/actors/alice/head?at=2001-01-01T00:00:00Z")
        assert early == (404, "version_not_found")
        told = await server.ask("GET", "/v1/lineage/is-ancestor?a=alice@3&b=bob@1")
        assert told["is_ancestor"]
        told = await server.ask("GET", "/v1/lineage/is-ancestor?a=alice@3&b=bob@0")
        assert not told["is_ancestor"]


async def test_a_recipe_and_its_proof(boot: Any) -> None:
    async with boot() as server:
        await family(server)
        recipe = await server.ask("GET", "/v1/versions/bob@1/recipe?whole=true")
        assert (recipe["start"], recipe["position"]) == (None, 0)
        assert [step["kind"] for step in recipe["steps"]] == ["prompt", "rule"]
        assert recipe["steps"][1]["others"] == ["alice@3"]
        proof = await server.ask("POST", "/v1/versions/bob@1/verify")
        assert proof["ok"]
        assert recipe["steps"][1]["digest"] == proof["digest"]


async def test_a_stream_shows_what_the_answer_shows(boot: Any) -> None:
    async with boot() as server:
        await family(server)
        route = f"{server.url}/v1/versions/bob@1/lineage?direction=both"
        whole = await server.ask("GET", "/v1/versions/bob@1/lineage?direction=both")
        async with server.session.get(f"{route}&stream=true") as answer:
            lines = [json.loads(line) for line in (await answer.text()).splitlines()]
        nodes = [one for one in lines if one["object"] == "version"]
        edges = [(one["from"], one["to"], one["op"]) for one in lines if one["object"] == "edge"]
        assert sorted(nodes, key=str) == sorted(whole["nodes"], key=str)
        assert sorted(edges) == sorted((e["from"], e["to"], e["op"]) for e in whole["edges"])
        assert len(nodes) == 6
        async with server.session.get(f"{route}&stream=true&format=prov") as answer:
            document = await answer.json()
        assert {name[3:] for name in document["entity"]} == {one["handle"] for one in nodes}
        assert len(document["used"]) == len(edges)
        gone = await server.refused("GET", "/v1/versions/bob@9/lineage?stream=true")
        assert gone == (404, "version_not_found")
