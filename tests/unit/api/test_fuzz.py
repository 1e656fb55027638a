"""Whatever is sent, the answer is an answer: below 500, with a code where it refuses."""

import asyncio
import json

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from statevisor.api.routes import ROUTES

WITH_BODY = [r for r in ROUTES if r.method in ("POST", "PATCH")]
FIELDS = sorted(
    {
        field.alias or name
        for route in WITH_BODY
        if route.body is not None
        for name, field in route.body.model_fields.items()
    }
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["gpu", "host", "nvme", "a@1", "alice", "reseed", "\0", "decay"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)
NEARLY = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4)


async def answers(client, route, data, kind):
    path = route.path.replace("{a}", "a").replace("{v}", "v")
    with capture_logs() as logs:
        response = await client.request(
            route.method, path, data=data, headers={"Content-Type": kind}
        )
        raw = await response.read()
    assert response.status < 500, (route.name, data, logs)
    if response.status >= 400:
        assert json.loads(raw)["code"]
    return response.status


@pytest.mark.parametrize("route", WITH_BODY, ids=lambda r: r.name)
async def test_any_body_is_answered(client, route):
    """Hypothesis finds bodies on this thread; the requests run on the loop of the test."""
    loop = asyncio.get_running_loop()
    seen = set()

    @settings(
        max_examples=30,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    @given(VALUES | NEARLY, st.booleans())
    def run(value, packed):
        try:
            data = msgpack.packb(value) if packed else json.dumps(value).encode()
        except (OverflowError, UnicodeEncodeError):
            return
        kind = "application/msgpack" if packed else "application/json"
        sent = asyncio.run_coroutine_threadsafe(answers(client, route, data, kind), loop)
        seen.add(sent.result(10))

    await asyncio.to_thread(run)
    assert seen


@pytest.mark.parametrize("route", WITH_BODY, ids=lambda r: r.name)
async def test_odd_bytes_are_answered(client, route):
    for data in (b"", b"\0", b"{", b"[]", b"\xff" * 9, b'{"":""}', b"null"):
        for kind in ("application/json", "application/msgpack", "text/html", ""):
            await answers(client, route, data, kind)


@pytest.mark.parametrize(
    "line",
    [
        "GET /v1/actors/%ZZ HTTP/1.1",
        "GET /v1/actors?limit=%ff HTTP/1.1",
        "GET /v1/actors?q=%00 HTTP/1.1",
        "GET //v1//actors HTTP/1.1",
        "GET /v1/versions/" + "a" * 5000 + " HTTP/1.1",
        "DELETE /v1/actors/.. HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "BREW /v1/actors HTTP/1.1",
        "GET /v1/actors/\xe4 HTTP/1.1",
        "nonsense",
    ],
)
async def test_an_odd_request_line_is_answered(client, visor, line):
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(f"{line}\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode("latin-1"))
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await writer.wait_closed()
    status = int(answer.split()[1])
    assert 400 <= status < 500 or (status == 200 and visor.calls)
