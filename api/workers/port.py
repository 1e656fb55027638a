"""The engine's end of the line to one worker: its calls are run, its turns' tokens sent back.

Nothing here waits for a worker: what it does not read waits in the socket's buffer, and that is
bounded by the turns it has opened. All tokens that one step releases leave as one frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from statevisor.api.host import Host
from statevisor.api.workers.frames import METHODS, columns, framed, read
from statevisor.hypervisor.commands import ActorView, LineageView, TokenEvent
from statevisor.hypervisor.errors import StatevisorError
from statevisor.hypervisor.stream import TurnStream

#: Calls that are begun in one turn of the event loop.
_AT_ONCE = 16

log = structlog.get_logger(__name__)


class Port:
    """One worker's calls."""

    def __init__(
        self, host: Host, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._host = host
        self._reader = reader
        self._writer = writer
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._streams: dict[int, TurnStream] = {}
        self._walks: dict[int, AsyncIterator[LineageView]] = {}
        self._tokens: list[tuple[int, Sequence[TokenEvent]]] = []
        self._own: dict[str, Callable[..., Any]] = {
            "walk": self._walk,
            "walk_next": self._walk_next,
            "walk_end": self._walk_end,
            "page": host.page,
            "drain": host.drain,
        }

    async def run(self) -> None:
        """Serve until the worker has gone; what it had open is then cancelled."""
        self.tell_state()
        calls = 0
        try:
            while True:
                kind, *rest = await read(self._reader)
                match kind:
                    case "call":
                        self._begin(*rest)
                        calls += 1
                        if calls % _AT_ONCE == 0:  # what has come is read without a pause
                            await asyncio.sleep(0)
                    case "cancel":
                        self._cancel(*rest)
                    case "meter":
                        self._meter(*rest)
                    case _:
                        raise ValueError(f"a frame of kind {kind!r}")
        except (EOFError, ConnectionError):
            pass
        finally:
            for stream in self._streams.values():
                stream.cancel()
            for task in self._tasks.values():
                task.cancel()
            self._writer.close()
            with suppress(ConnectionError):
                await self._writer.wait_closed()

    def tell_state(self) -> None:
        """Say whether there is a visor and whether it is being drained."""
        self._send("state", self._host.loaded, self._host.draining)

    def _begin(self, number: int, method: str, args: list[Any], given: dict[str, Any]) -> None:
        known = self._glance(method, args)
        if known is not None:
            # at once: a task would stand behind all that the event loop has to do now
            self._send("done", number, known)
            return
        work = (
            self._turn(number, *args) if method == "generate" else self._call(method, args, given)
        )
        task = asyncio.create_task(self._answered(number, work))
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    def _glance(self, method: str, args: list[Any]) -> ActorView | None:
        """What a call would answer, where that is known already."""
        if method != "actor" or len(args) != 1 or not self._host.loaded:
            return None
        return self._host.visor.glance(args[0])

    async def _answered(self, number: int, work: Any) -> None:
        try:
            self._send("done", number, await work)
        except StatevisorError as error:
            self._send("failed", number, error)
        except Exception:  # a fault of ours: logged here, and no client is told more
            log.exception("unexpected")
            self._send("failed", number, StatevisorError())

    async def _call(self, method: str, args: list[Any], given: dict[str, Any]) -> Any:
        if method in self._own:
            answer = self._own[method](*args, **given)
        elif method in METHODS:
            answer = getattr(self._host.visor, method)(*args, **given)
        else:
            raise StatevisorError(f"a worker may not call {method}")
        return await answer

    async def _turn(self, number: int, command: Any) -> Any:
        stream = self._streams[number] = await self._host.visor.generate(command)
        try:
            self._send("opened", number, stream.turn_id)
            # no task is woken for a token
            stream.listen(partial(self._release, number))
            return await stream.result()
        finally:
            del self._streams[number]

    def _cancel(self, number: int) -> None:
        if number in self._streams:
            self._streams[number].cancel()
        elif number in self._tasks:
            self._tasks[number].cancel()

    def _meter(self, samples: list[tuple[str, str, float, dict[str, str]]]) -> None:
        for kind, name, value, labels in samples:
            meter = self._host.meter
            (meter.count if kind == "count" else meter.observe)(name, value, **labels)

    async def _walk(self, key: str, direction: str) -> int:
        number = len(self._walks)
        while number in self._walks:
            number += 1
        self._walks[number] = aiter(self._host.visor.walk(key, direction))
        return number

    async def _walk_next(self, number: int) -> LineageView | None:
        return await anext(self._walks[number], None)

    async def _walk_end(self, number: int) -> None:
        self._walks.pop(number, None)

    def _release(self, number: int, tokens: Sequence[TokenEvent]) -> None:
        if not self._tokens:
            # behind the other turns that this step woke
            asyncio.get_running_loop().call_soon(self._flush)
        self._tokens.append((number, tokens))

    def _flush(self) -> None:
        tokens, self._tokens = self._tokens, []
        if tokens:
            self._write(("tokens", *columns(tokens)))

    def _send(self, *frame: Any) -> None:
        self._flush()  # a turn's end must not overtake its tokens
        self._write(frame)

    def _write(self, frame: tuple[Any, ...]) -> None:
        if not self._writer.is_closing():
            self._writer.write(framed(frame))
