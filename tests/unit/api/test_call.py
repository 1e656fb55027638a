"""What is checked before a handler runs: names, bodies, queries, conditions, keys."""

import asyncio
import gzip
import json

import msgpack
import pytest

from statevisor.hypervisor.catalog_port import Once


async def refusal(response, status, code):
    body = await response.json()
    assert (response.status, body["code"]) == (status, code), body
    return body["detail"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/actors/a%2Fb", "actor_not_found"),
        ("/v1/actors/%2e%2e", "actor_not_found"),
        ("/v1/actors/%00", "actor_not_found"),
        ("/v1/actors/%FF", "actor_not_found"),
        ("/v1/actors/" + "x" * 200, "actor_not_found"),
        ("/v1/actors/a@1", "actor_not_found"),
        ("/v1/versions/a@", "version_not_found"),
        ("/v1/versions/a@b", "version_not_found"),
        ("/v1/versions/a@1/diff/%20", "version_not_found"),
    ],
)
async def test_what_cannot_be_a_name_is_not_found(client, visor, path, code):
    import yarl

    response = await client.get(yarl.URL(path, encoded=True))
    if response.status == 404 and (await response.json())["code"] == "not_found":
        assert path.endswith("%2e%2e")  # the client or the router has taken the dots away
        return
    await refusal(response, 404, code)
    assert visor.calls == []


@pytest.mark.parametrize("body", [b"{", b'{"seed":1,"seed":2}', b"\xff", b"[" * 9999, b'{"seed":1'])
async def test_a_body_that_cannot_be_read_is_400(client, body):
    response = await client.post(
        "/v1/actors", data=body[:4096], headers={"Content-Type": "application/json"}
    )
    await refusal(response, 400, "invalid_request")


@pytest.mark.parametrize("body", [[], "x", 1, None, {"unknown": 1}, {"seed": 1.0}, {"seed": True}])
@pytest.mark.parametrize("packed", [False, True])
async def test_a_body_of_the_wrong_form_is_422(client, body, packed):
    kind = "application/msgpack" if packed else "application/json"
    data = msgpack.packb(body) if packed else json.dumps(body).encode()
    response = await client.post("/v1/actors", data=data, headers={"Content-Type": kind})
    await refusal(response, 422, "invalid_request")


async def test_another_media_type_is_415(client):
    response = await client.post("/v1/actors", data=b"<a/>", headers={"Content-Type": "text/xml"})
    await refusal(response, 415, "invalid_request")


async def test_no_body_is_an_empty_object(client, visor):
    assert (await client.post("/v1/actors")).status == 201
    assert (await client.post("/v1/actors/a/append")).status == 422
    assert visor.last.prompt is None


@pytest.mark.parametrize("size", [4096, 4097])
async def test_the_body_limit_is_exact(client, size):
    frame = len(b'{"prompt":""}')
    body = json.dumps({"prompt": "x" * (size - frame)}, separators=(",", ":")).encode()
    assert len(body) == size
    response = await client.post(
        "/v1/actors", data=body, headers={"Content-Type": "application/json"}
    )
    if size <= 4096:
        assert response.status == 201
    else:
        await refusal(response, 413, "payload_too_large")


async def test_a_body_without_a_length_is_limited_too(client):
    async def endless():
        for _ in range(100):
            yield b"x" * 1000

    response = await client.post("/v1/actors", data=endless())
    await refusal(response, 413, "payload_too_large")


async def test_an_import_has_a_limit_of_its_own(client, visor):
    assert (await client.post("/v1/versions/import", data=b"x" * 8192)).status == 201
    assert len(visor.last.file) == 8192
    response = await client.post("/v1/versions/import", data=b"x" * 8193)
    await refusal(response, 413, "payload_too_large")


async def test_a_body_that_stops_arriving_is_given_up(client):
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(b"POST /v1/actors HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n")
    writer.write(b"Content-Type: application/json\r\nConnection: close\r\n\r\n{")
    answer = await reader.readuntil(b"}")
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"invalid_request" in answer


async def test_a_client_that_leaves_in_the_middle_of_its_body_disturbs_nobody(client, visor):
    _, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(b"POST /v1/actors HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
    await writer.drain()
    writer.transport.abort()
    assert (await client.get("/health")).status == 200
    assert visor.calls == []


async def test_two_lengths_are_refused(client):
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(b"POST /v1/actors HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n")
    writer.write(b"Content-Length: 3\r\n\r\n{}}")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.0 400") or answer.startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "foo", "GZIP"])
@pytest.mark.parametrize("cut", [0, 1, 9, 12, None])
async def test_a_packed_body_is_refused_whole_or_damaged(client, encoding, cut):
    response = await client.post(
        "/v1/actors",
        data=gzip.compress(b'{"name": "packed"}')[:cut],
        headers={"Content-Encoding": encoding, "Content-Type": "application/json"},
    )
    await refusal(response, 415, "invalid_request")


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=x",
        "limit=1&limit=2",
        "status=odd",
        "tier=moon",
        "label==x",
        "unknown=1",
        "q=%00",
    ],
)
async def test_a_wrong_query_is_422(client, visor, query):
    await refusal(await client.get(f"/v1/actors?{query}"), 422, "invalid_request")
    assert visor.calls == []


async def test_if_match_is_a_condition(client, visor):
    for route in ("fork", "snapshot", "resume"):
        await client.post(f"/v1/actors/a/{route}", headers={"If-Match": '"17"'})
        assert visor.last.if_generation == 17
    await client.delete("/v1/actors/a", headers={"If-Match": '"18"'})
    assert visor.last.if_generation == 18
    await client.post("/v1/actors/a/fork", headers={"If-Match": "*"})
    assert visor.last.if_generation is None


@pytest.mark.parametrize("text", ["17", 'W/"17"', '"x"', '"1","2"', '""', '"-1"'])
async def test_another_if_match_is_refused_and_changes_nothing(client, visor, text):
    response = await client.post("/v1/actors/a/fork", headers={"If-Match": text})
    await refusal(response, 422, "invalid_request")
    assert visor.calls == []


async def once_of(client, visor, path="/v1/actors/a/fork", body=None, key="k1", **more):
    response = await client.post(path, json=body, headers={"Idempotency-Key": key}, **more)
    assert response.status in (200, 201)
    found = visor.last.once
    assert isinstance(found, Once)
    assert found.key == key
    return found.request


async def test_a_key_is_bound_to_method_path_and_body(client, visor):
    first = await once_of(client, visor, body={"count": 2, "rng": "reseed"})
    assert await once_of(client, visor, body={"rng": "reseed", "count": 2}) == first
    assert await once_of(client, visor, body={"count": 3, "rng": "reseed"}) != first
    assert await once_of(client, visor, "/v1/actors/b/fork", {"count": 2, "rng": "reseed"}) != first
    headers = {"Idempotency-Key": "k1", "Content-Type": "application/msgpack"}
    packed = msgpack.packb({"count": 2, "rng": "reseed"})
    await client.post("/v1/actors/a/fork", data=packed, headers=headers)
    assert visor.last.once.request == first


async def test_a_key_of_an_import_is_bound_to_the_bytes(client, visor):
    seen = []
    for body in (b"one", b"one", b"two"):
        await client.post("/v1/versions/import", data=body, headers={"Idempotency-Key": "k"})
        seen.append(visor.last.once.request)
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.parametrize("key", ["a b", "x" * 256])
async def test_an_odd_key_is_refused(client, visor, key):
    response = await client.post("/v1/actors", headers={"Idempotency-Key": key})
    await refusal(response, 422, "invalid_request")
    assert visor.calls == []
