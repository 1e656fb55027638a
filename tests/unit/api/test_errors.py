import msgpack
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from statevisor.api.app import build_app
from statevisor.api.call import Call
from statevisor.api.errors import RETRY_AFTER_S, STATUS, openai_error, openai_status, status_of
from statevisor.api.route import Route
from statevisor.api.wire import NoQuery, Nothing
from statevisor.hypervisor import errors
from statevisor.hypervisor.errors import StatevisorError

PAGE_CODES = {
    "invalid_request": {400, 415, 422},
    "context_length_exceeded": {422},
    "capability_missing": {422},
    "idempotency_mismatch": {422},
    "invalid_api_key": {401},
    "forbidden": {403},
    "model_not_found": {404},
    "actor_not_found": {404},
    "version_not_found": {404},
    "actor_busy": {409},
    "actor_exists": {409},
    "invalid_transition": {409},
    "incompatible_image": {409},
    "generation_conflict": {412},
    "payload_too_large": {413, 431},
    "quota_exceeded": {429},
    "no_free_slot": {503},
    "model_loading": {503},
    "draining": {503},
    "image_corrupt": {422, 500},
    "actor_quarantined": {409},
    "internal": {500},
}


def every_kind():
    """The whole tree, without what other tests have put into it."""
    found = [StatevisorError]
    for kind in found:
        found.extend(k for k in kind.__subclasses__() if k.__module__ == errors.__name__)
    return found


def test_every_class_of_the_tree_is_mapped():
    assert set(every_kind()) == set(STATUS)


def test_every_code_of_the_page_has_its_status():
    found: dict[str, set[int]] = {}
    for kind, status in STATUS.items():
        found.setdefault(kind.code, set()).add(status)
    assert {code: found.get(code) for code in PAGE_CODES} == PAGE_CODES


def test_a_new_class_has_the_status_of_its_parent():
    class Novel(errors.ActorNotFound):
        """Unlisted."""

    try:
        assert status_of(Novel()) == 404
    finally:
        del Novel  # or the tree would hold it for other tests


async def test_every_error_is_a_problem(client, visor):
    for kind in every_kind():
        visor.answers["actor"] = kind("what happened")
        response = await client.get("/v1/actors/alice", headers={"X-Request-Id": "abc-1"})
        body = await response.json()
        assert response.status == STATUS[kind]
        assert response.content_type == "application/problem+json"
        assert response.headers["X-Request-Id"] == "abc-1"
        assert body.pop("title")
        assert body.pop("hint") == kind.hint
        assert body == {
            "type": f"/docs#code-{kind.code}",
            "status": STATUS[kind],
            "code": kind.code,
            "detail": "what happened",
            "request_id": "abc-1",
        }


async def test_a_client_is_told_whether_to_retry(client, visor):
    for kind in every_kind():
        visor.answers["actor"] = kind()
        response = await client.get("/v1/actors/alice")
        permanent = response.headers.get("x-should-retry") == "false"
        if response.status in (429, 503):
            assert int(response.headers["Retry-After"]) > 0
        if kind in RETRY_AFTER_S:
            assert not permanent
        elif response.status == 409:
            assert permanent
            assert "Retry-After" not in response.headers


def test_only_a_busy_actor_is_a_passing_conflict():
    passing = {k for k, status in STATUS.items() if status == 409 and k in RETRY_AFTER_S}
    assert passing == {errors.ActorBusy}


async def test_an_unexpected_exception_tells_nothing(client, visor):
    visor.answers["actor"] = KeyError("/secret/path")
    with capture_logs() as logs:
        response = await client.get("/v1/actors/alice")
    assert response.status == 500
    text = await response.text()
    assert "secret" not in text
    assert (await response.json())["code"] == "internal"
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["unexpected"]


async def test_an_unknown_path_has_a_code(client):
    response = await client.get("/v1/nothing")
    assert response.status == 404
    assert (await response.json())["code"] == "not_found"


async def test_a_wrong_method_has_a_code_and_says_what_is_allowed(client):
    response = await client.put("/v1/actors/alice")
    assert response.status == 405
    assert (await response.json())["code"] == "method_not_allowed"
    assert response.headers["Allow"] == "DELETE, GET, HEAD, PATCH"


async def test_a_refused_field_is_listed(client):
    response = await client.post("/v1/actors", json={"name": "a/b", "sed": 1})
    body = await response.json()
    assert response.status == 422
    assert {one["field"] for one in body["errors"]} == {"body.name", "body.sed"}


async def test_a_problem_comes_as_msgpack_to_who_speaks_it(client, visor):
    visor.answers["actor"] = errors.ActorNotFound("gone")
    response = await client.get("/v1/actors/x", headers={"Accept": "application/msgpack"})
    assert response.status == 404
    assert response.content_type == "application/msgpack"
    assert msgpack.unpackb(await response.read())["code"] == "actor_not_found"


@pytest.mark.parametrize("given", ["a b", "x" * 129, "ä", "a;b"])
async def test_an_odd_request_id_is_replaced(client, given):
    response = await client.get("/health", headers={"X-Request-Id": given})
    assert response.headers["X-Request-Id"].startswith("req_")


async def test_every_answer_has_its_own_request_id(client):
    answers = [await client.get("/health") for _ in range(3)]
    assert len({answer.headers["X-Request-Id"] for answer in answers}) == 3
    assert {answer.headers["Server"] for answer in answers} == {"statevisor/0.0.0"}


async def test_an_error_of_the_framework_is_a_problem(client, monkeypatch):
    def refuse(*_: object) -> None:
        raise web.HTTPBadRequest(reason="odd")

    monkeypatch.setattr("statevisor.api.app.authorise", refuse)
    response = await client.get("/health")
    assert response.status == 422
    assert (await response.json())["code"] == "invalid_request"


async def _refusing(call: Call[Nothing, NoQuery]) -> web.Response:
    raise errors.InvalidRequest("no", fields=(("body.max_tokens", "too many"),))


async def test_openai_paths_have_openais_shape(aiohttp_client, host):
    route = Route("POST", "/v1/x", _refusing, "infer", openai=True)
    client = await aiohttp_client(build_app(host, (route,)))
    response = await client.post("/v1/x")
    assert response.status == 400
    assert response.content_type == "application/json"
    assert await response.json() == {
        "error": {
            "message": "no",
            "type": "invalid_request_error",
            "param": "max_tokens",
            "code": "invalid_request",
        }
    }


def test_openai_errors_keep_the_code():
    for kind, status in STATUS.items():
        assert openai_error(kind())["error"]["code"] == kind.code
        assert openai_status(kind()) == (400 if status == 422 else status)


def test_the_root_is_the_default():
    assert status_of(StatevisorError()) == 500
