"""The worker's end of the line to the engine: a visor that lives in another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from statevisor.api.workers.frames import METHODS, framed, read, rows
from statevisor.hypervisor.commands import DrainView, Generate, LineageView
from statevisor.hypervisor.errors import Unavailable
from statevisor.hypervisor.stream import TurnStream

_AGAIN = "Try again in a moment: nothing that was told is lost."


class RemoteVisor:
    """What routes call of a visor, carried to the engine's process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ready = False
        self._reader = reader
        self._writer = writer
        self._numbers = count()
        self._gone: Unavailable | None = None
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, TurnStream] = {}

    async def run(self, changed: Callable[[bool, bool], None]) -> None:
        """Take in what the engine sends, until it has gone.

        `changed` is called with (loaded, draining) whenever the engine says so.
        """
        try:
            while True:
                kind, *rest = await read(self._reader)
                match kind:
                    case "tokens":
                        self._tokens(rest)
                    case "opened":
                        self._opened(*rest)
                    case "done":
                        self._done(*rest)
                    case "failed":
                        self._failed(*rest)
                    case "state":
                        self.ready = rest[0]
                        changed(*rest)
                    case _:
                        raise ValueError(f"a frame of kind {kind!r}")
        except (EOFError, ConnectionError):
            pass
        finally:
            self.ready = False
            self._gone = Unavailable("the engine has stopped", hint=_AGAIN)
            for number in [*self._calls, *self._streams]:
                self._failed(number, self._gone)
            self._writer.close()
            with suppress(ConnectionError):
                await self._writer.wait_closed()

    def close(self) -> None:
        """Hang up; the engine then cancels what is open here."""
        self._writer.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in METHODS:
            return partial(self.call, name)
        raise AttributeError(name)

    async def call(self, method: str, *args: Any, **given: Any) -> Any:
        """Have the engine run one method; a call that is cancelled here is cancelled there."""
        if self._gone is not None:
            raise self._gone
        number = next(self._numbers)
        future = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            self._send("call", number, method, list(args), given)
            return await future
        except asyncio.CancelledError:
            self._send("cancel", number)
            raise
        finally:
            self._calls.pop(number, None)

    async def generate(self, command: Generate) -> TurnStream:
        """Open a turn; its tokens come as the engine commits them."""
        stream: TurnStream = await self.call("generate", command)
        return stream

    async def walk(self, key: str, direction: str) -> AsyncIterator[LineageView]:
        """The whole graph in parts, each fetched when it is asked for."""
        number = await self.call("walk", key, direction)
        try:
            while (part := await self.call("walk_next", number)) is not None:
                yield part
        finally:
            await self.call("walk_end", number)

    async def drain(self) -> DrainView:
        """Drain the whole server."""
        view: DrainView = await self.call("drain")
        return view

    async def page(self) -> bytes:
        """The metrics of the engine and of all workers."""
        page: bytes = await self.call("page")
        return page

    def meter(self, samples: list[tuple[str, str, float, dict[str, str]]]) -> None:
        """Hand over what was measured here."""
        self._send("meter", samples)

    def _opened(self, number: int, turn_id: str) -> None:
        future = self._calls.get(number)
        if future is None or future.done():
            return  # it was cancelled while it opened
        stream = self._streams[number] = TurnStream(turn_id)
        stream.on_cancel(partial(self._send, "cancel", number))
        future.set_result(stream)

    def _tokens(self, by_field: list[list[Any]]) -> None:
        for number, events in rows(by_field):
            if number in self._streams:
                self._streams[number].put(events)

    def _done(self, number: int, value: Any) -> None:
        if number in self._streams:
            self._streams.pop(number).end(value)
        elif (future := self._calls.get(number)) is not None and not future.done():
            future.set_result(value)

    def _failed(self, number: int, error: Exception) -> None:
        if number in self._streams:
            self._streams.pop(number).fail(error)
        elif (future := self._calls.get(number)) is not None and not future.done():
            future.set_exception(error)

    def _send(self, *frame: Any) -> None:
        if not self._writer.is_closing():
            self._writer.write(framed(frame))


class RelayMeter:
    """A Meter whose samples the engine keeps; they leave once a turn of the event loop."""

    def __init__(self) -> None:
        self._samples: list[tuple[str, str, float, dict[str, str]]] = []
        self._to: RemoteVisor | None = None

    def attach(self, visor: RemoteVisor) -> None:
        """Send what comes from now on."""
        self._to = visor

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put one value into a histogram."""
        self._add("observe", name, value, labels)

    def count(self, name: str, n: float = 1, **labels: str) -> None:
        """Add to a counter."""
        self._add("count", name, n, labels)

    def _add(self, kind: str, name: str, value: float, labels: dict[str, str]) -> None:
        if not self._samples:
            asyncio.get_running_loop().call_soon(self._flush)
        self._samples.append((kind, name, value, labels))

    def _flush(self) -> None:
        samples, self._samples = self._samples, []
        if self._to is not None:
            self._to.meter(samples)
