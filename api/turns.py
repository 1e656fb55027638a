"""Turns: append, generate (one answer or a stream), cancel, and what was said."""

from __future__ import annotations

import asyncio

import structlog
from aiohttp import web

from statevisor.api.call import Call, Reply, etag
from statevisor.api.errors import problem
from statevisor.api.host import REQUEST_ID
from statevisor.api.sse import CLIENT_GONE, EventStream, frame
from statevisor.api.wire import NoQuery, Nothing
from statevisor.api.wire_turns import (
    AppendBody,
    CancelBody,
    GenerateBody,
    TranscriptQuery,
    token_object,
    transcript_object,
    turn_object,
)
from statevisor.hypervisor.commands import TurnView
from statevisor.hypervisor.errors import StatevisorError
from statevisor.hypervisor.stream import TurnStream

TURN_HEADER = "X-Statevisor-Turn"

log = structlog.get_logger(__name__)


async def append(call: Call[AppendBody, NoQuery]) -> Reply:
    """Absorb a prompt without an answer."""
    return _reply(await call.visor.append(call.body.command(call.path("a"), call.change)))


async def generate(call: Call[GenerateBody, NoQuery]) -> Reply | web.StreamResponse:
    """Absorb a prompt, if any, and generate."""
    stream = await call.visor.generate(call.body.command(call.path("a"), call.change))
    try:
        return await _streamed(call, stream) if call.body.stream else _reply(await stream.result())
    except asyncio.CancelledError:
        # the client has gone
        stream.cancel()
        raise


async def cancel(call: Call[CancelBody, NoQuery]) -> Reply:
    """End the running turn at its last committed token."""
    turn = await call.visor.cancel(call.body.command(call.path("a")))
    return Reply(value={"object": "cancel", "turn": turn}, status=202)


async def transcript(call: Call[Nothing, TranscriptQuery]) -> Reply:
    """Read committed tokens and their text."""
    query = call.query
    view = await call.visor.transcript(call.path("a"), query.start, query.stop)
    return Reply(value=transcript_object(view))


def _reply(turn: TurnView) -> Reply:
    return Reply(value=turn_object(turn), headers={**etag(turn.generation), TURN_HEADER: turn.id})


async def _streamed(call: Call[GenerateBody, NoQuery], stream: TurnStream) -> web.StreamResponse:
    settings = call.host.settings
    events = EventStream(
        call.request,
        beat_s=settings.heartbeat_s,
        stall_s=settings.stall_s,
        headers={TURN_HEADER: stream.turn_id},
    )
    try:
        async with events:
            await _tell(call, stream, events)
    except CLIENT_GONE:
        stream.cancel()
    return events.response


async def _tell(call: Call[GenerateBody, NoQuery], stream: TurnStream, events: EventStream) -> None:
    """Send a turn to its end; the status line has left, so errors can only be events."""
    try:
        async for batch in stream.batches():
            await events.send(b"".join(frame("token", token_object(token)) for token in batch))
        turn = await stream.result()
        await call.host.turnstile.through()
    except CLIENT_GONE:
        raise
    except StatevisorError as error:
        await events.send(_error(call, error))
    except Exception:
        log.exception("unexpected", turn=stream.turn_id)
        stream.cancel()
        await events.send(_error(call, StatevisorError()))
    else:
        await _close(call, events, turn)


async def _close(call: Call[GenerateBody, NoQuery], events: EventStream, turn: TurnView) -> None:
    if turn.error is not None:
        await events.send(_error(call, _named(turn.error)))
    await events.send(frame("turn", turn_object(turn)))


def _named(code: str) -> StatevisorError:
    """The error that a code stands for."""
    kinds = [StatevisorError]
    while kinds:
        kind = kinds.pop()
        if kind.code == code:
            return kind()
        kinds.extend(kind.__subclasses__())
    return StatevisorError()


def _error(call: Call[GenerateBody, NoQuery], error: StatevisorError) -> bytes:
    return frame("error", problem(error, call.request[REQUEST_ID]))
