"""Reading calls on threads of their own, each in one snapshot of the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine

from statevisor.hypervisor.hands import Hands
from statevisor.store.db import READERS, begin, finish, translated

P = ParamSpec("P")
T = TypeVar("T")


class Readers:
    """A few threads, and as many connections that stay open between calls."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._hands = Hands(READERS, "catalog-reader")
        # The one that was used last comes first: what it has read is still in its memory.
        self._idle: list[Connection] = []

    async def run(
        self, read: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a function with a connection, in one snapshot.

        Raises: what it raises; Unavailable (the database cannot be read).
        """
        return await self._hands.run(lambda: self._read(read, *args, **kwargs))

    async def close(self) -> None:
        """Wait for what is running and close the connections."""
        await self._hands.close()
        while self._idle:
            self._idle.pop().close()

    def _read(
        self, read: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        with translated():
            conn = self._connection()
            try:
                begin(conn, write=False)
                try:
                    return read(conn, *args, **kwargs)
                finally:
                    finish(conn, commit=False)
            finally:
                self._idle.append(conn)

    def _connection(self) -> Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._engine.connect()
