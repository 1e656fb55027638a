"""A worker's end and the engine's end of one line: turns, cancels, and what a broken line does."""

from __future__ import annotations

import asyncio

import pytest

from statevisor.api.workers import port as ports
from statevisor.api.workers.frames import framed
from statevisor.hypervisor import commands as c
from statevisor.hypervisor.errors import ActorNotFound, StatevisorError, Unavailable


@pytest.fixture
async def engine(host, behind_a_socket):
    async with behind_a_socket(host) as worker:
        yield worker.engine


@pytest.fixture
def frames(monkeypatch):
    """The frames that the engine's end writes."""
    written = []
    write = ports.Port._write

    def note(self, frame):
        written.append(frame)
        write(self, frame)

    monkeypatch.setattr(ports.Port, "_write", note)
    return written


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - any state, not an event
            await asyncio.sleep(0)


async def test_a_turn_comes_as_its_tokens_and_its_end(engine, visor):
    stream = await engine.generate(c.Generate(actor="a", prompt="x"))
    assert [event.text async for event in stream] == ["h", "i"]
    assert await stream.result() == visor.turn
    assert visor.calls[-1] == ("generate", (c.Generate(actor="a", prompt="x"),), {})


async def test_tokens_of_many_turns_in_one_step_are_one_frame(engine, visor, frames):
    visor.script = lambda stream: None
    turns = [await engine.generate(c.Generate(actor=name)) for name in "abc"]
    await until(lambda: len(visor.streams) == 3)
    frames.clear()
    for event in visor.tokens("x", "y"):
        for stream in visor.streams:  # a step: one token for each
            stream.put([event])
        await until(lambda: frames)
        assert [frame[0] for frame in frames] == ["tokens"]
        assert len(frames[0][1]) == 3
        frames.clear()
    for stream in visor.streams:
        stream.end(visor.turn)
    for turn in turns:
        assert [event.text async for event in turn] == ["x", "y"]


async def test_a_cancel_here_is_a_cancel_there(engine, visor):
    visor.script = lambda stream: None
    stream = await engine.generate(c.Generate(actor="a"))
    stream.cancel()
    await until(lambda: visor.streams[0].cancelled)
    visor.streams[0].end(visor.turn)
    assert await stream.result() == visor.turn


async def test_an_actor_that_is_known_is_told_without_a_task(engine, visor, frames):
    visor.known["a"] = visor.answers["actor"]
    assert await engine.actor("a") == visor.answers["actor"]
    assert visor.calls == []
    await engine.actor("b")
    assert visor.calls == [("actor", ("b",), {})]


async def test_many_calls_at_once_are_begun_a_part_at_a_time(engine, visor, monkeypatch):
    turns, begun = [0], []

    async def others():
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    begin = ports.Port._begin

    def note(self, *call):
        begun.append(turns[0])
        begin(self, *call)

    monkeypatch.setattr(ports.Port, "_begin", note)
    beside = asyncio.create_task(others())
    # one write of all, as of many clients that come at once
    engine._writer.writelines(
        [framed(("call", 1000 + n, "actor", [f"a{n}"], {})) for n in range(64)]
    )
    await until(lambda: len(begun) == 64)
    beside.cancel()
    assert max(begun.count(turn) for turn in begun) <= 16


async def test_a_call_that_nobody_waits_for_is_cancelled(engine, visor, monkeypatch):
    state = []

    async def append(command):
        state.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            state.append("cancelled")

    monkeypatch.setattr(visor, "append", append, raising=False)
    waiting = asyncio.create_task(engine.append(c.Append(actor="a", prompt="x")))
    await until(lambda: state)
    waiting.cancel()
    await until(lambda: len(state) == 2)
    assert state == ["begun", "cancelled"]


async def test_errors_arrive_and_faults_are_not_told(engine, visor):
    visor.answers["actor"] = ActorNotFound("there is no bob")
    with pytest.raises(ActorNotFound, match="bob"):
        await engine.actor("bob")
    visor.answers["actor"] = RuntimeError("secret")
    with pytest.raises(StatevisorError) as caught:
        await engine.actor("bob")
    assert type(caught.value) is StatevisorError
    assert "secret" not in str(caught.value)


async def test_a_turn_that_breaks_is_told_after_its_tokens(engine, visor):
    def script(stream):
        for event in visor.tokens("h"):
            stream.put([event])
        stream.fail(Unavailable("the disk fails"))

    visor.script = script
    stream = await engine.generate(c.Generate(actor="a"))
    assert [event.text async for event in stream] == ["h"]
    with pytest.raises(Unavailable, match="disk"):
        await stream.result()


@pytest.mark.parametrize("method", ["start", "close", "failed", "_dead", "__init__", "nothing"])
async def test_a_worker_cannot_call_what_is_the_engines(engine, visor, method):
    with pytest.raises(StatevisorError, match="may not call"):
        await engine.call(method)
    assert visor.calls == []


async def test_a_long_walk_is_fetched_as_it_is_read(engine, visor):
    visor.parts = list(visor.parts) * 5
    walk = engine.walk("a", "ancestors")
    assert await anext(walk) == visor.parts[0]
    await walk.aclose()
    assert [part async for part in engine.walk("a", "both")] == visor.parts


async def test_when_the_worker_goes_its_turns_are_cancelled(host, behind_a_socket, visor):
    visor.script = lambda stream: None
    async with behind_a_socket(host) as worker:
        await worker.engine.generate(c.Generate(actor="a"))
    assert visor.streams[0].cancelled


async def test_when_the_engine_goes_all_who_wait_are_told(host, behind_a_socket, visor):
    visor.script = lambda stream: None
    async with behind_a_socket(host) as worker:
        stream = await worker.engine.generate(c.Generate(actor="a"))
        worker.engine.close()
        with pytest.raises(Unavailable, match="engine"):
            await stream.result()
        with pytest.raises(Unavailable, match="engine"):
            await worker.engine.actor("a")
        stream.cancel()  # of what has gone: nothing happens


async def test_a_drain_is_the_whole_servers(host, behind_a_socket):
    async with behind_a_socket(host) as worker:
        await worker.drain()
        assert host.draining
        await until(lambda: worker.draining)


async def test_what_a_worker_measures_is_on_the_engines_page(host, behind_a_socket):
    async with behind_a_socket(host) as worker:
        worker.meter.count("http_requests_total", 3, method="GET", route="/x", status="200")
        await asyncio.sleep(0)
        page = (await worker.page()).decode()
    assert 'statevisor_http_requests_total{method="GET",route="/x",status="200"} 3.0' in page
