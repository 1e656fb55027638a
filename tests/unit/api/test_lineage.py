"""Graphs that are written while they are read, and questions about versions."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from aiohttp import ClientPayloadError

from statevisor.hypervisor.catalog_port import VersionQuery
from statevisor.hypervisor.errors import ActorNotFound

ROUTE = "/v1/actors/a/lineage?stream=true"


async def test_json_comes_as_a_line_for_each_version_and_edge(client: Any, visor: Any) -> None:
    answer = await client.get(f"{ROUTE}&direction=descendants")
    lines = [orjson.loads(line) for line in (await answer.text()).splitlines()]

    assert answer.content_type == "application/x-ndjson"
    assert [one["object"] for one in lines] == ["version", "edge"] * 3
    assert lines[1] == {"object": "edge", "from": "alice@3", "to": "alice@4", "op": "mutate"}
    assert visor.calls[-1] == ("walk", ("a", "descendants"), {})


@pytest.mark.parametrize(
    ("form", "media", "begins", "ends"),
    [
        ("dot", "text/vnd.graphviz", "digraph lineage {\n", "}\n"),
        ("mermaid", "text/plain", "flowchart LR\n", "\n"),
        ("prov", "application/json", '{"prefix"', "}\n"),
    ],
)
async def test_pictures_come_in_parts(
    client: Any, form: str, media: str, begins: str, ends: str
) -> None:
    answer = await client.get(f"{ROUTE}&format={form}")
    text = await answer.text()

    assert answer.content_type == media
    assert text.startswith(begins)
    assert text.endswith(ends)
    assert "alice" in text


@pytest.mark.parametrize("form", ["json", "dot", "mermaid", "prov"])
async def test_what_is_not_there_is_refused_before_anything_is_written(
    client: Any, visor: Any, form: str
) -> None:
    visor.parts = [ActorNotFound("nobody")]
    answer = await client.get(f"{ROUTE}&format={form}")

    assert answer.status == 404
    assert (await answer.json())["code"] == "actor_not_found"


async def test_what_fails_in_the_midst_is_seen_to_be_incomplete(client: Any, visor: Any) -> None:
    visor.parts = [*visor.parts, RuntimeError("the disk fails")]
    answer = await client.get(ROUTE)

    assert answer.status == 200
    with pytest.raises(ClientPayloadError):
        await answer.read()


async def test_a_stream_has_no_depth(client: Any) -> None:
    answer = await client.get(f"{ROUTE}&depth=3")

    assert answer.status == 422
    assert "depth" in (await answer.json())["detail"]


async def test_a_graph_has_as_many_versions_as_asked_for(client: Any, visor: Any) -> None:
    for query, asked in (("limit=50", (1000, 50)), ("depth=3", (3, 10_000))):
        response = await client.get(f"/v1/actors/a/lineage?direction=descendants&{query}")
        assert response.status == 200
        assert visor.calls[-1][:2] == ("lineage", ("a", "descendants", *asked))
    for wrong in ("limit=0", "limit=10001", "limit=5&stream=true"):
        response = await client.get(f"/v1/actors/a/lineage?{wrong}")
        assert response.status == 422


async def test_a_stream_that_is_only_looked_at_has_no_body(client: Any) -> None:
    answer = await client.head(ROUTE)

    assert answer.status == 200
    assert await answer.read() == b""


async def test_times_are_taken_with_their_zone_to_the_microsecond(client: Any, visor: Any) -> None:
    await client.get("/v1/versions?since=2026-01-02T03:04:05.000006Z&until=2026-01-02T04:00Z")
    assert visor.last == VersionQuery(
        since_us=1_767_323_045_000_006, until_us=1_767_326_400_000_000
    )
    await client.get("/v1/actors/a/head", params={"at": "2026-01-02T05:04:05.000006+02:00"})
    assert visor.calls[-1][1] == ("a", 1_767_323_045_000_006)
    await client.get("/v1/actors/a/head")
    assert visor.calls[-1][1] == ("a", None)


@pytest.mark.parametrize(
    "query", ["since=2026-01-02T03:04:05", "until=soon", "op=dance", "label==v", "tag=a b"]
)
async def test_what_cannot_be_asked_is_refused(client: Any, query: str) -> None:
    assert (await client.get(f"/v1/versions?{query}")).status == 422
