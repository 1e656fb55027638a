"""Generation over HTTP: one answer, a stream, and clients that go away."""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from statevisor.api.app import build_app
from statevisor.hypervisor import errors
from statevisor.hypervisor.turnstile import FEW
from statevisor.hypervisor.vocab import FinishReason


@pytest.fixture(params=["here", "by a worker"])
async def client(request, aiohttp_client, host, behind_a_socket):
    """The routes over a visor in this process, and over one behind a worker's socket."""
    async with AsyncExitStack() as stack:
        served = host
        if request.param == "by a worker":
            served = await stack.enter_async_context(behind_a_socket(host))
        yield await aiohttp_client(build_app(served))


GENERATE = "/v1/actors/alice/generate"


def events(text: str) -> list[tuple[str, dict]]:
    """The events of a stream, by the rules of the standard; comments are left out."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in block.splitlines() if not line.startswith(":")
        )
        if fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


async def until(condition) -> None:
    """Wait for something that happens in other tasks."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - any state, not an event
            await asyncio.sleep(0.001)


async def test_one_answer_is_the_turn(client):
    response = await client.post(GENERATE, json={"prompt": "x"})
    assert await response.json() == {
        "object": "turn",
        "id": "turn_1",
        "actor": "alice",
        "text": "hi",
        "token_ids": [104, 105],
        "finish_reason": "length",
        "position": 150,
        "durable_position": 150,
        "generation": 18,
        "usage": {"prompt_tokens": 5, "completion_tokens": 2},
    }
    assert response.headers["ETag"] == '"18"'
    assert response.headers["X-Statevisor-Turn"] == "turn_1"


async def test_a_stream_is_tokens_then_the_turn(client):
    whole = await (await client.post(GENERATE, json={"prompt": "x"})).json()
    response = await client.post(GENERATE, json={"prompt": "x", "stream": True})
    assert response.status == 200
    assert response.content_type == "text/event-stream"
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["X-Request-Id"]
    logprobs = {
        "logprob": -0.5,
        "top": [{"token_id": 104, "logprob": -0.5}, {"token_id": 7, "logprob": None}],
    }
    assert events(await response.text()) == [
        (
            "token",
            {"index": 0, "token_id": 104, "text": "h", "position": 148, "logprobs": logprobs},
        ),
        (
            "token",
            {"index": 1, "token_id": 105, "text": "i", "position": 149, "logprobs": logprobs},
        ),
        ("turn", whole),
    ]


async def test_text_with_line_breaks_stays_one_event(client, visor):
    def script(stream):
        for token in visor.tokens("\n\nevent: turn\ndata: {}\n\n"):
            stream.put([token])
        stream.end(visor.turn)

    visor.script = script
    response = await client.post(GENERATE, json={"stream": True})
    names = [name for name, _ in events(await response.text())]
    assert names == ["token", "turn"]


async def test_a_refusal_before_the_stream_has_its_status(client, visor):
    visor.answers["generate"] = errors.ActorBusy()
    for stream in (False, True):
        response = await client.post(GENERATE, json={"stream": stream})
        assert response.status == 409
        assert response.headers["Retry-After"] == "1"


@pytest.mark.parametrize(
    ("fault", "code"), [(errors.Fenced(), "generation_conflict"), (ValueError("x"), "internal")]
)
async def test_a_turn_that_fails_in_the_middle(client, visor, fault, code):
    def script(stream):
        stream.put([next(iter(visor.tokens("h")))])
        stream.fail(fault)

    visor.script = script
    with capture_logs() as logs:
        response = await client.post(GENERATE, json={})
        assert (await response.json())["code"] == code
        headers = {"X-Request-Id": "r1"}
        response = await client.post(GENERATE, json={"stream": True}, headers=headers)
        found = events(await response.text())
    assert ("unexpected" in {entry["event"] for entry in logs}) == (code == "internal")
    assert [name for name, _ in found] == ["token", "error"]
    assert (found[1][1]["code"], found[1][1]["request_id"]) == (code, "r1")


async def test_a_turn_that_ends_in_an_error_is_told_with_its_tokens(client, visor):
    broken = replace(visor.turn, finish=FinishReason.ERROR, error="actor_quarantined")
    visor.script = lambda stream: stream.end(broken)
    body = await (await client.post(GENERATE, json={})).json()
    assert (body["finish_reason"], body["error"]) == ("error", "actor_quarantined")
    response = await client.post(GENERATE, json={"stream": True})
    found = events(await response.text())
    assert [name for name, _ in found] == ["error", "turn"]
    assert found[0][1]["code"] == "actor_quarantined"
    assert found[0][1]["status"] == 409


async def test_tokens_are_sent_while_the_turn_runs(client, visor):
    visor.script = lambda stream: None
    response = await client.post(GENERATE, json={"stream": True})
    stream = visor.streams[0]
    for token in visor.tokens("a", "b"):
        stream.put([token])
        line = b""
        while not line.startswith(b"data"):
            line = await response.content.readline()
        assert json.loads(line[6:])["text"] == token.text
    stream.end(visor.turn)
    assert events((await response.content.read()).decode().lstrip("\n"))[-1][0] == "turn"


async def test_a_quiet_stream_has_heartbeats(client, visor):
    visor.script = lambda stream: None
    response = await client.post(GENERATE, json={"stream": True})
    beats = 0
    while beats < 3:
        beats += (await response.content.readline()) == b": keep-alive\n"
    assert not visor.streams[0].cancelled
    visor.streams[0].end(visor.turn)
    assert (await response.content.read()).decode().endswith("\n\n")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_its_turn(client, visor, stream):
    visor.script = lambda stream: None
    _, writer = await asyncio.open_connection(client.host, client.port)
    body = json.dumps({"stream": stream}).encode()
    head = f"POST {GENERATE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await until(lambda: visor.streams)
    assert not visor.streams[0].cancelled
    writer.transport.abort()
    await until(lambda: visor.streams[0].cancelled)
    # the turn goes on to its end by itself; nothing is left waiting for it
    visor.streams[0].end(visor.turn)
    assert (await client.get("/health")).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_stays_is_not_cancelled(client, visor, stream):
    visor.script = lambda stream: None
    asked = asyncio.create_task(client.post(GENERATE, json={"stream": stream}))
    await until(lambda: visor.streams)
    await asyncio.sleep(0.05)  # several looks for a vanished client
    assert not visor.streams[0].cancelled
    visor.streams[0].end(visor.turn)
    assert (await asked).status == 200


async def test_a_client_that_leaves_early_may_leave_many_tokens_unread(client, visor):
    visor.script = lambda stream: None
    response = await client.post(GENERATE, json={"stream": True})
    stream = visor.streams[0]
    response.close()
    await until(lambda: stream.cancelled)
    for token in visor.tokens(*"abcdefgh" * 50):
        stream.put([token])
    stream.end(visor.turn)
    assert (await client.get("/health")).status == 200


async def test_cancel_names_the_turn(client, visor):
    response = await client.post("/v1/actors/alice/cancel")
    assert response.status == 202
    assert await response.json() == {"object": "cancel", "turn": "turn_1"}
    assert visor.last.turn is None


async def test_the_transcript_has_the_shape_of_the_page(client, visor):
    body = await (await client.get("/v1/actors/alice/transcript?from=0&to=2")).json()
    assert body == {
        "object": "transcript",
        "actor": "alice",
        "from": 0,
        "to": 2,
        "token_ids": [1, 2],
        "text": "ab",
        "segments": [{"position": 0, "count": 2, "kind": "prompt"}],
    }
    await client.get("/v1/actors/alice/transcript")
    assert visor.calls[-1][1] == ("alice", None, None)


async def test_many_requests_at_once_are_begun_a_few_at_a_time(client, visor):
    turns, begun = [0], []

    async def others():
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    generate = visor.generate

    async def note(command):
        begun.append(turns[0])
        return await generate(command)

    visor.generate = note
    client.session.connector._limit = 0
    beside = asyncio.create_task(others())
    posts = [client.post("/v1/actors/a/generate", json={"prompt": "x"}) for _ in range(60)]
    for answer in await asyncio.gather(*posts):
        assert answer.status == 200
    beside.cancel()
    assert max(begun.count(turn) for turn in begun) <= 2 * FEW
