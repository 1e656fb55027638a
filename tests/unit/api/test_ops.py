import pytest

from statevisor.api.app import build_app
from statevisor.api.host import Host
from statevisor.api.metrics import PrometheusMeter
from statevisor.api.routes import ROUTES
from statevisor.hypervisor.errors import Draining


@pytest.fixture
async def loading(aiohttp_client, settings):
    return await aiohttp_client(
        build_app(Host(settings=settings, meter=PrometheusMeter(), version="9"))
    )


async def test_health_answers_while_the_model_loads(loading):
    assert await (await loading.get("/health")).json() == {"status": "ok"}
    assert await (await loading.get("/version")).json() == {"version": "9"}
    assert (await loading.get("/metrics")).status == 200
    assert (await loading.get("/docs")).status == 200


@pytest.mark.parametrize(
    "route", [r for r in ROUTES if r.scope != "public" and r.method == "GET"], ids=lambda r: r.name
)
async def test_the_rest_is_told_to_wait(loading, route):
    path = route.path.replace("{a}", "a").replace("{v}", "v").replace("{w}", "w")
    query = "?a=x&b=y" if "ancestor" in path else "?v=x&layer=0" if "blame" in path else ""
    response = await loading.get(path.replace("{m}", "m") + query)
    assert response.status == 503
    assert (await response.json())["code"] == "model_loading"
    assert int(response.headers["Retry-After"]) > 0


async def test_ready_follows_the_visor(client, loading, visor):
    assert (await (await loading.get("/ready")).json())["code"] == "model_loading"
    assert (await client.get("/ready")).status == 200
    visor.ready = False
    assert (await (await client.get("/ready")).json())["code"] == "model_loading"


async def test_drain_tells_what_it_did_and_readiness_ends(client, visor):
    response = await client.post("/v1/admin/drain")
    assert await response.json() == {
        "object": "drain",
        "hibernated": 2,
        "images": 1,
        "failed": ["bob"],
    }
    ready = await client.get("/ready")
    assert (ready.status, (await ready.json())["code"]) == (503, "draining")
    visor.answers["create"] = Draining()
    assert (await client.post("/v1/actors")).headers["Retry-After"]
    assert (await client.get("/health")).status == 200
