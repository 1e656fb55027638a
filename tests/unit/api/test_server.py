import asyncio
import json
import os
import signal

import pytest

from statevisor.api import server
from statevisor.hypervisor.errors import Unavailable


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_asks_and_the_second_has_its_usual_effect(which):
    usual = signal.getsignal(which)
    async with server.signalled() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), which)
        await asyncio.wait_for(stop.wait(), 5)
        assert signal.getsignal(which) in (usual, signal.SIG_DFL, signal.default_int_handler)
    assert stop.is_set()


def test_the_address_is_written_whole(tmp_path):
    path = tmp_path / "port.json"
    server._announce(path, "http://127.0.0.1:1")
    assert json.loads(path.read_text()) == {"url": "http://127.0.0.1:1"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["port.json"]


def test_an_address_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(Unavailable, match="No such file"):
        server._announce(tmp_path / "none" / "port.json", "http://127.0.0.1:1")
