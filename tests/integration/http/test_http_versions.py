"""Versions over HTTP: named, compared, proved, carried out and in."""

from __future__ import annotations

from typing import Any

import msgpack
from blake3 import blake3


async def grown(server: Any) -> None:
    await server.ask("POST", "/v1/actors", {"name": "alice", "prompt": "hello", "seed": 1})
    await server.ask("POST", "/v1/actors/alice/generate", {"max_tokens": 5, "ignore_eos": True})


async def test_a_version_waits_for_its_bytes_if_asked(boot: Any) -> None:
    async with boot() as server:
        await grown(server)
        plain = await server.ask("POST", "/v1/actors/alice/snapshot", {"tag": "quick"})
        made = await server.ask(
            "POST", "/v1/actors/alice/snapshot?wait=true", {"tag": "good", "labels": {"a": "b"}}
        )
        assert made["digest"].startswith("blake3:")
        assert (made["tags"], made["labels"], made["op"]) == (["good"], {"a": "b"}, "snapshot")
        assert plain["position"] == made["position"] == 11
        by_tag = await server.ask("GET", "/v1/versions/good")
        assert by_tag["handle"] == made["handle"]
        assert by_tag["digest"] == made["digest"]
        listed = await server.ask("GET", "/v1/actors/alice/versions")
        assert [v["seq"] for v in listed["data"]] == sorted(v["seq"] for v in listed["data"])
        assert made["handle"] in {v["handle"] for v in listed["data"]}
        last = listed["last_id"]
        rest = await server.ask("GET", f"/v1/actors/alice/versions?after={last}")
        assert rest["data"] == []
        first = await server.ask("GET", "/v1/actors/alice/versions?from=0&to=1")
        assert [v["op"] for v in first["data"]] == ["create"]
        await server.ask("POST", "/v1/actors", {"name": "bob", "prompt": "no"})
        path = f"/v1/actors/{(await server.ask('GET', '/v1/actors/alice'))['id']}/versions"
        assert (await server.ask("GET", f"{path}?after={last}"))["data"] == []
        for after in ("nope", "bob@0", "alice", "carol@1"):
            assert await server.refused("GET", f"{path}?after={after}") == (400, "invalid_cursor")


async def test_a_version_can_be_proved_and_carried(boot: Any) -> None:
    async with boot() as server:
        await grown(server)
        made = await server.ask("POST", "/v1/actors/alice/snapshot?wait=true", {})
        handle = made["handle"]
        proof = await server.ask("POST", f"/v1/versions/{handle}/verify")
        assert (proof["ok"], proof["digest"]) == (True, made["digest"])
        async with server.session.get(f"{server.url}/v1/versions/{handle}/export") as answer:
            file = await answer.read()
            etag = answer.headers["ETag"]
        assert "blake3:" + blake3(file).hexdigest() == made["digest"] == etag.strip('"')
        assert len(file) == made["bytes"]
        path = f"{server.url}/v1/versions/import?name=bob"
        async with server.session.post(path, data=file) as answer:
            came = await answer.json()
            assert answer.status == 201, came
            assert answer.headers["Location"] == f"/v1/versions/{came['handle']}"
        assert (came["op"], came["digest"], came["position"]) == ("import", made["digest"], 11)
        one = await server.ask(
            "POST", "/v1/actors/alice/generate", {"max_tokens": 9, "temperature": 1, "seed": 4}
        )
        two = await server.ask(
            "POST", "/v1/actors/bob/generate", {"max_tokens": 9, "temperature": 1, "seed": 4}
        )
        assert one["token_ids"] == two["token_ids"]
        spoilt = bytearray(file)
        spoilt[-1] ^= 1
        for body in (bytes(spoilt), file[:-1], b"", b"no image"):
            query = f"?name=eve&digest={made['digest']}"
            path = f"{server.url}/v1/versions/import{query}"
            async with server.session.post(path, data=body) as answer:
                refused = await answer.json()
            assert (answer.status, refused["code"]) == (422, "image_corrupt"), refused
        assert (await server.refused("GET", "/v1/actors/eve"))[0] == 404


async def test_what_is_no_image_is_the_senders_fault(boot: Any) -> None:
    async with boot() as server:
        for body in (b"", b"\0" * 100, b"x" * 9000, (2**63).to_bytes(8, "little")):
            path = f"{server.url}/v1/versions/import"
            async with server.session.post(path, data=body) as answer:
                refused = await answer.json()
            assert (answer.status, refused["code"]) == (422, "image_corrupt"), refused
        assert (await server.ask("GET", "/v1/actors"))["data"] == []


async def test_a_mutation_is_a_version_with_its_reasons(boot: Any) -> None:
    async with boot() as server:
        await grown(server)
        model = (await server.ask("GET", "/v1/models"))["data"][0]
        rule = "zero" if "zero" in model["capabilities"]["rules"] else None
        rule = rule or next(iter(model["capabilities"]["rules"]))
        before = (await server.ask("GET", "/v1/actors/alice"))["head"]
        made = await server.ask(
            "POST",
            "/v1/actors/alice/mutate",
            {"rule": rule, "select": {"layers": [1]}, "agent": "me", "reason": "to see"},
        )
        assert (made["op"], made["rule"]) == ("mutate", rule)
        assert (made["agent"], made["reason"], made["select"]) == ("me", "to see", {"layers": [1]})
        assert made["parents"][0] == before
        head = (await server.ask("GET", "/v1/actors/alice"))["head"]
        assert head == made["handle"]
        blamed = await server.ask("GET", f"/v1/lineage/blame?v={head}&layer=1")
        assert blamed["handle"] == head
        assert await server.ask("GET", f"/v1/lineage/blame?v={head}&layer=0") is None
        differ = await server.ask("GET", f"/v1/versions/{before}/diff/{head}")
        assert {one["layer"] for one in differ["families"] if one["distance"] > 0} <= {1}
        proof = await server.ask("POST", f"/v1/versions/{head}/verify")
        assert proof["ok"]
        unknown = await server.refused("POST", "/v1/actors/alice/mutate", {"rule": "nonsense"})
        assert unknown == (422, "invalid_request")


async def test_lineage_is_told_in_four_languages(boot: Any) -> None:
    async with boot() as server:
        await grown(server)
        await server.ask("POST", "/v1/actors/alice/fork", {"names": ["bob", "eve"]})
        graph = await server.ask("GET", "/v1/actors/alice/lineage?direction=both")
        handles = {node["handle"] for node in graph["nodes"]}
        assert {"bob@0", "eve@0", "alice@0"} <= handles
        assert all(edge["from"] in handles and edge["to"] in handles for edge in graph["edges"])
        for form, word in (("dot", "digraph"), ("mermaid", "flowchart"), ("prov", "prefix")):
            path = f"{server.url}/v1/actors/alice/lineage?direction=both&format={form}"
            async with server.session.get(path) as answer:
                text = await answer.text()
            assert word in text
            assert "bob@0" in text
        both = await server.ask("GET", "/v1/lineage/common-ancestor?a=bob@0&b=eve@0")
        assert both["actor"] == "alice"


async def test_msgpack_says_the_same_as_json(boot: Any) -> None:
    async with boot() as server:
        await grown(server)
        kind = "application/msgpack"
        headers = {"Accept": kind, "Content-Type": kind}
        for path in ("/v1/actors/alice", "/v1/actors/alice/lineage", "/v1/models"):
            async with server.session.get(server.url + path, headers=headers) as answer:
                packed = msgpack.unpackb(await answer.read())
            assert packed == await server.ask("GET", path)
        body = msgpack.packb({"count": 2, "names": ["x", "y"]})
        path = server.url + "/v1/actors/alice/fork"
        async with server.session.post(path, data=body, headers=headers) as answer:
            assert answer.status == 201
            names = [child["name"] for child in msgpack.unpackb(await answer.read())["data"]]
        assert names == ["x", "y"]
