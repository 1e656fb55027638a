"""Where clients arrive, and that none is left hanging when no more are taken."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from statevisor.api.front import serve_app
from statevisor.api.host import Host


@pytest.mark.parametrize("turns", range(6))
async def test_who_arrives_as_it_closes_is_closed(host: Host, turns: int) -> None:
    """However far the loop has come with a connection: not accepted, accepted, known."""
    door = socket.create_server(("127.0.0.1", 0))
    door.setblocking(False)
    serving = await serve_app(host, [door])
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
    with socket.create_connection(door.getsockname()) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await serving.cleanup()
        for _ in range(2):  # a transport says goodbye in a turn of its own
            await asyncio.sleep(0)
        client.settimeout(1)
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
    assert failures == []
