import dataclasses

import pytest

from statevisor.api.app import build_app
from statevisor.api.auth import is_loopback
from statevisor.api.routes import ROUTES

PUBLIC = {"/health", "/ready", "/version", "/metrics", "/openapi.json", "/docs"}


@pytest.fixture
async def guarded(aiohttp_client, host):
    host.settings = dataclasses.replace(host.settings, token="s3cret")
    return await aiohttp_client(build_app(host))


def test_only_these_are_public():
    assert {route.path for route in ROUTES if route.scope == "public"} == PUBLIC


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: r.name)
async def test_a_token_guards_every_other_route(guarded, visor, route):
    path = route.path.replace("{a}", "a").replace("{v}", "v").replace("{w}", "w")
    response = await guarded.request(route.method, path.replace("{m}", "m"))
    if route.path in PUBLIC:
        assert response.status == 200
    else:
        assert response.status == 401
        assert (await response.json())["code"] == "invalid_api_key"
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert visor.calls == []


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer s3cret", 200),
        ("bearer s3cret", 200),
        ("Bearer s3cre", 401),
        ("Bearer", 401),
        ("Bearer s3cretx", 401),
        ("Basic s3cret", 401),
        ("", 401),
        ("Bearer \xe4", 401),
    ],
)
async def test_the_token_must_be_the_one(guarded, header, status):
    response = await guarded.get("/v1/actors/a", headers={"Authorization": header})
    assert response.status == status


async def test_a_page_of_another_site_may_not_change_anything(client, visor):
    foreign = {"Origin": "https://evil.example"}
    response = await client.post("/v1/actors/a/fork", headers=foreign)
    assert response.status == 403
    assert (await response.json())["code"] == "forbidden"
    assert visor.calls == []
    assert (await client.get("/v1/actors/a", headers=foreign)).status == 200


async def test_a_page_of_this_server_may(client):
    own = {"Origin": f"http://{client.host}:{client.port}"}
    assert (await client.post("/v1/actors/a/fork", headers=own)).status == 201


async def test_with_a_token_the_origin_does_not_matter(guarded):
    headers = {"Origin": "https://other.example", "Authorization": "Bearer s3cret"}
    assert (await guarded.post("/v1/actors/a/fork", headers=headers)).status == 201


@pytest.mark.parametrize("name", ["evil.example", "evil.example:80", "[", "localhost.evil.example"])
async def test_a_name_that_points_here_opens_nothing(client, visor, name):
    response = await client.get("/v1/actors/a", headers={"Host": name})
    assert response.status in (400, 403)  # the framework refuses what is no host at all
    assert visor.calls == []
    assert (await client.get("/health", headers={"Host": "evil.example"})).status == 200


@pytest.mark.parametrize("name", ["localhost", "localhost:1", "127.0.0.1:8000", "[::1]:8000"])
async def test_addresses_and_localhost_are_nobodys_names(client, name):
    assert (await client.get("/v1/actors/a", headers={"Host": name})).status == 200


async def test_a_server_for_others_may_have_any_name(aiohttp_client, host):
    host.settings = dataclasses.replace(host.settings, host="0.0.0.0")
    client = await aiohttp_client(build_app(host))
    assert (await client.get("/v1/actors/a", headers={"Host": "box.example"})).status == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_addresses_that_only_this_machine_reaches(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example", ""])
def test_addresses_that_others_reach(host):
    assert not is_loopback(host)
