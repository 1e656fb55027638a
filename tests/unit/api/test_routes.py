"""Every row of the table, driven over HTTP: what it answers has the shape that it declares."""

from contextlib import AsyncExitStack

import msgpack
import orjson
import pytest
from jsonschema import Draft202012Validator, ValidationError

from statevisor.api import openapi, routes
from statevisor.api.app import build_app
from statevisor.api.codec import JSON, MSGPACK
from statevisor.api.wire import Nothing
from statevisor.api.wire_versions import version_object
from statevisor.hypervisor import commands as c
from statevisor.hypervisor.catalog_port import VersionQuery
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.vocab import Op, Rng, Tier


@pytest.fixture(params=["here", "by a worker"])
async def client(request, aiohttp_client, host, behind_a_socket):
    """The routes over a visor in this process, and over one behind a worker's socket."""
    async with AsyncExitStack() as stack:
        served = host
        if request.param == "by a worker":
            served = await stack.enter_async_context(behind_a_socket(host))
        yield await aiohttp_client(build_app(served))


#: One request per route: path, body, status, the command or arguments that reach the visor.
CASES = {
    "actors_create": ("/v1/actors", {"prompt": "x"}, c.CreateActor(prompt="x")),
    "actors_search": ("/v1/actors?label=team=a&limit=2&status=idle&tier=host", None, None),
    "actors_read": ("/v1/actors/act_1", None, "act_1"),
    "actors_update": ("/v1/actors/a", {"pinned": True}, c.UpdateActor(actor="a", pinned=True)),
    "actors_delete": ("/v1/actors/a", None, c.DeleteActor(actor="a")),
    "actors_fork": ("/v1/actors/a/fork", {"at": "b@1"}, c.Fork(actor="a", at="b@1")),
    "actors_rollback": (
        "/v1/actors/a/rollback",
        {"to": 5, "rng": "inherit"},
        c.Rollback(actor="a", to=5, rng=Rng.INHERIT),
    ),
    "actors_hibernate": (
        "/v1/actors/a/hibernate",
        {"tier": "host"},
        c.Hibernate(actor="a", tier=Tier.HOST),
    ),
    "actors_resume": ("/v1/actors/a/resume", None, c.Resume(actor="a")),
    "turns_append": ("/v1/actors/a/append", {"prompt": "x"}, c.Append(actor="a", prompt="x")),
    "turns_generate": ("/v1/actors/a/generate", {"prompt": "x"}, c.Generate(actor="a", prompt="x")),
    "turns_cancel": (
        "/v1/actors/a/cancel",
        {"turn": "turn_1"},
        c.CancelTurn(actor="a", turn="turn_1"),
    ),
    "turns_transcript": ("/v1/actors/a/transcript?from=0&to=2", None, "a"),
    "versions_snapshot": (
        "/v1/actors/a/snapshot?wait=true",
        {"tag": "t"},
        c.Snapshot(actor="a", tag="t", wait=True),
    ),
    "versions_mutate": (
        "/v1/actors/a/mutate",
        {"rule": "zero"},
        c.Mutate(actor="a", mutation=Mutation(rule="zero", params={})),
    ),
    "versions_of_actor": ("/v1/actors/a/versions?limit=1", None, "a"),
    "versions_bring_in": ("/v1/versions/import?name=n", b"x", c.ImportImage(name="n", file=b"x")),
    "versions_read": ("/v1/versions/alice@4", None, "alice@4"),
    "versions_diff": ("/v1/versions/alice%404/diff/tag", None, "alice@4"),
    "versions_export": ("/v1/versions/alice@4/export", None, "alice@4"),
    "versions_search": (
        "/v1/versions?label=k=v&op=fork",
        None,
        VersionQuery(label=("k", "v"), op=Op.FORK),
    ),
    "versions_head": ("/v1/actors/a/head?at=2026-01-02T03:04:05.000006Z", None, "a"),
    "versions_recipe": ("/v1/versions/alice@4/recipe?whole=true", None, "alice@4"),
    "lineage_is_ancestor": ("/v1/lineage/is-ancestor?a=x@1&b=y@2", None, "x@1"),
    "versions_verify": ("/v1/versions/alice@4/verify", None, "alice@4"),
    "lineage_around": ("/v1/actors/a/lineage?direction=both&depth=3", None, "a"),
    "lineage_around_version": ("/v1/versions/alice@4/lineage", None, "alice@4"),
    "lineage_common_ancestor": ("/v1/lineage/common-ancestor?a=x@1&b=y@2", None, "x@1"),
    "lineage_blame": ("/v1/lineage/blame?v=x@1&layer=2", None, "x@1"),
    "tiers_usage": ("/v1/tiers", None, None),
    "tiers_evict": (
        "/v1/tiers/evict",
        {"from": "gpu", "to": "host"},
        c.Evict(source=Tier.GPU, target=Tier.HOST),
    ),
    "models_loaded": ("/v1/models", None, None),
    "models_read": ("/v1/models/org/name", None, "org/name"),
    "models_tokenize": ("/tokenize", {"prompt": "hi", "return_token_strs": True}, None),
    "models_detokenize": ("/detokenize", {"tokens": [1]}, None),
    "models_tokenizer_info": ("/tokenizer_info", None, None),
    "ops_health": ("/health", None, None),
    "ops_ready": ("/ready", None, None),
    "ops_version": ("/version", None, None),
    "ops_scrape": ("/metrics", None, None),
    "documents_describe": ("/openapi.json", None, None),
    "documents_page": ("/docs", None, None),
    "ops_drain": ("/v1/admin/drain", None, None),
    "admin_gc": ("/v1/admin/gc", {"dry_run": True, "grace_s": 60}, c.Gc(dry_run=True, grace_s=60)),
    "admin_fsck": ("/v1/admin/fsck", {"replay": True}, c.Fsck(replay=True)),
    "admin_backup": ("/v1/admin/backup", {"path": "/tmp/copy"}, c.Backup(target="/tmp/copy")),
}
BY_NAME = {route.name: route for route in routes.ROUTES}


def test_every_route_has_a_case_and_a_name_of_its_own():
    assert set(CASES) == set(BY_NAME)
    assert len(BY_NAME) == len(routes.ROUTES)
    assert all(route.summary.endswith(".") for route in routes.ROUTES)


@pytest.fixture(scope="module")
def published():
    """The OpenAPI document, made strict: no answer may hold a field that it does not name."""
    document = openapi.document(routes.ROUTES, "0.0.0")
    for schema in document["components"]["schemas"].values():
        if "properties" in schema:
            schema["additionalProperties"] = False
    return document


def check(document, route, media, value, status=None):
    """The value is what the document says of this route's answer."""
    operation = document["paths"][route.path][route.method.lower()]
    schema = operation["responses"][str(status or route.status)]["content"][media]["schema"]
    Draft202012Validator({**schema, "components": document["components"]}).validate(value)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("media", [JSON, MSGPACK])
async def test_a_route_answers_what_it_declares(client, visor, published, name, media):
    route = BY_NAME[name]
    path, body, expected = CASES[name]
    headers = {"Accept": media}
    sent = body if isinstance(body, bytes) else None
    if isinstance(body, dict):
        headers["Content-Type"] = media
        sent = msgpack.packb(body) if media == MSGPACK else orjson.dumps(body)
    response = await client.request(route.method, path, data=sent, headers=headers)
    raw = await response.read()
    assert response.status == route.status, raw
    assert response.headers["X-Request-Id"]
    if expected is not None:
        assert visor.last == expected
    if route.answer is None:
        assert response.content_type in (*route.media, "application/octet-stream")
    elif name != "documents_describe":
        assert response.content_type == media
        check(
            published, route, media, msgpack.unpackb(raw) if media == MSGPACK else orjson.loads(raw)
        )


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("actors_fork", c.Fork(actor="a", at="b@1")),
        ("actors_rollback", c.Rollback(actor="a", to=7)),
    ],
)
async def test_a_dry_run_asks_for_the_cost_alone(client, visor, published, name, command):
    path = CASES[name][0]
    body = {"at": "b@1"} if name == "actors_fork" else {"to": 7}

    response = await client.post(path, json={**body, "dry_run": True})

    assert response.status == 200
    assert [(call[0], call[1]) for call in visor.calls] == [("cost", (command,))]
    told = await response.json()
    check(published, BY_NAME[name], JSON, told, 200)
    assert (told["tokens"], told["estimated_ms"], told["bound_tokens"]) == (36, 12.5, 50)


def test_a_field_that_is_not_declared_would_be_seen(published, visor):
    value = version_object(visor.answers["version"])
    check(published, BY_NAME["versions_read"], MSGPACK, value)
    with pytest.raises(ValidationError):
        check(published, BY_NAME["versions_read"], MSGPACK, {**value, "extra": 1})


def test_reading_routes_take_no_body_and_change_nothing():
    for route in routes.ROUTES:
        if route.method == "GET":
            assert route.body is Nothing
            assert not route.changes


@pytest.mark.parametrize("name", [n for n, r in BY_NAME.items() if r.method == "GET"])
async def test_head_answers_as_get_without_a_body(client, name):
    path = CASES[name][0]
    got, head = await client.get(path), await client.head(path)
    assert head.status == got.status
    assert await head.read() == b""


async def test_an_actor_has_the_shape_of_the_page(client):
    response = await client.get("/v1/actors/alice")
    body = await response.json()
    page = {
        "object": "actor",
        "id": "act_1",
        "name": "alice",
        "model": "demo",
        "status": "idle",
        "tier": "gpu",
        "position": 123,
        "durable_position": 120,
        "generation": 17,
        "head": "alice@3",
        "parent": "bob@2",
        "seed": 7,
        "pinned": False,
        "labels": {"team": "a"},
        "created_at": "2026-01-02T03:04:05.000006Z",
        "updated_at": "2026-01-02T03:04:05.000006Z",
    }
    assert {key: body[key] for key in page} == page
    assert response.headers["ETag"] == '"17"'


async def test_a_version_has_the_shape_of_the_page(client):
    body = await (await client.get("/v1/versions/alice@4")).json()
    page = {
        "object": "version",
        "handle": "alice@4",
        "actor": "alice",
        "seq": 4,
        "position": 123,
        "op": "mutate",
        "parents": ["alice@3"],
        "digest": "blake3:ab",
        "bytes": 99,
        "rule": "decay",
        "params": {"alpha": 0.5},
        "drift": False,
        "tags": ["best"],
        "labels": {},
        "created_at": "2026-01-02T03:04:05.000006Z",
    }
    assert {key: body[key] for key in page} == page


async def test_a_list_has_the_shape_of_the_page(client, visor):
    body = await (await client.get("/v1/actors?label=team&after=act_0")).json()
    assert {k: v for k, v in body.items() if k != "data"} == {
        "object": "list",
        "first_id": "act_1",
        "last_id": "act_1",
        "has_more": True,
    }
    assert visor.calls[-1][2] == {
        "status": None,
        "model": None,
        "tier": None,
        "label": ("team", None),
        "q": None,
        "limit": 50,
        "after": "act_0",
    }


async def test_tiers_and_eviction_have_the_shape_of_the_page(client):
    tiers = (await (await client.get("/v1/tiers")).json())["data"]
    assert tiers[0]["slots"] == {"capacity": 8, "used": 2}
    assert tiers[1]["slots"] is None
    evicted = await client.post("/v1/tiers/evict", json={"from": "gpu", "to": "host"})
    body = await evicted.json()
    assert (body["moved"], body["bytes"], body["skipped"]) == (["alice"], 100, ["bob"])


async def test_a_model_has_openais_shape(client, visor):
    visor.answers["models"] = (visor.answers["model"],)
    body = await (await client.get("/v1/models")).json()
    assert body["data"][0] == {
        "id": "demo",
        "object": "model",
        "created": 1_767_323_045,
        "owned_by": "statevisor",
        "family": "rwkv7",
        "state_bytes": 100,
        "slots": 8,
        "vocab_size": 256,
        "fingerprints": {"layout": "l"},
        "capabilities": {"rules": {"decay": 1}},
    }


async def test_tokenizing_has_vllms_shape(client, visor):
    body = await (await client.post("/tokenize", json={"prompt": "hi"})).json()
    assert body == {"count": 2, "max_model_len": 1 << 20, "tokens": [104, 105], "token_strs": None}
    assert visor.calls[-1][1] == (None, "hi", True)
    body = await (await client.post("/detokenize", json={"tokens": [104, 105]})).json()
    assert body == {"prompt": "hi"}


async def test_made_things_say_where_they_are(client):
    created = await client.post("/v1/actors", json={})
    assert created.headers["Location"] == "/v1/actors/alice"
    snapshot = await client.post("/v1/actors/alice/snapshot")
    assert snapshot.headers["Location"] == "/v1/versions/alice@4"


@pytest.mark.parametrize(
    ("form", "kind", "word"),
    [
        ("dot", "text/vnd.graphviz", "digraph"),
        ("mermaid", "text/plain", "flowchart"),
        ("prov", "application/json", "wasDerivedFrom"),
        ("json", "application/json", '"truncated":true'),
    ],
)
async def test_lineage_speaks_four_languages(client, form, kind, word):
    response = await client.get(f"/v1/actors/a/lineage?format={form}")
    assert response.content_type == kind
    assert word in await response.text()


async def test_an_export_is_the_file_itself(client):
    response = await client.get("/v1/versions/alice@4/export")
    assert await response.read() == b"safetensors bytes"
    assert response.headers["Content-Disposition"] == 'attachment; filename="alice@4.safetensors"'


async def test_versions_may_be_cut_at_a_seq(client):
    body = await (await client.get("/v1/actors/a/versions?to=4")).json()
    assert (body["data"], body["has_more"]) == ([], False)
    body = await (await client.get("/v1/actors/a/versions?to=5")).json()
    assert [v["seq"] for v in body["data"]] == [4]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/actors/alice/fork?dry_run=true"),
        ("GET", "/v1/actors/alice?fields=name"),
        ("GET", "/v1/versions/a@1/export?format=raw"),
        ("DELETE", "/v1/actors/alice?dry_run=true"),
    ],
)
async def test_a_query_that_is_not_read_is_refused(client, visor, method, path):
    response = await client.request(method, path, json={} if method == "POST" else None)
    assert response.status == 422
    assert "there is no such field" in (await response.json())["detail"]
    assert visor.calls == []


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/metrics", "/docs"])
async def test_a_probe_may_say_what_it_likes(client, path):
    assert (await client.get(path + "?x=1&x=2")).status == 200
