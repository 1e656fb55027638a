import asyncio

import pytest

from statevisor.hypervisor.commands import TokenEvent
from statevisor.hypervisor.stream import TurnStream


def event(index):
    return TokenEvent(index=index, position=index, token=index, text="")


async def gathered(stream, **most):
    return [[one.index for one in batch] async for batch in stream.batches(**most)]


async def test_tokens_that_wait_come_together():
    stream = TurnStream("turn_1")
    for index in range(10):
        stream.put([event(index)])
    stream.end(None)
    assert await gathered(stream, most=4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_a_token_that_comes_alone_is_not_held_back():
    stream = TurnStream("turn_1")
    batches = aiter(stream.batches())
    for index in range(3):
        stream.put([event(index)])
        assert [one.index for one in await asyncio.wait_for(anext(batches), 1)] == [index]
    stream.end(None)
    with pytest.raises(StopAsyncIteration):
        await anext(batches)


@pytest.mark.parametrize("count", [0, 1, 64, 65, 128])
async def test_nothing_is_lost_at_the_end(count):
    stream = TurnStream("turn_1")
    for index in range(count):
        stream.put([event(index)])
    stream.fail(ValueError("x"))
    assert [one for batch in await gathered(stream) for one in batch] == list(range(count))
    with pytest.raises(ValueError, match="x"):
        await stream.result()


async def test_what_is_released_together_stays_together():
    stream = TurnStream("turn_1")
    stream.put([event(index) for index in range(3)])
    stream.put([])
    stream.put([event(3)])
    stream.end(None)
    assert await gathered(stream, most=2) == [[0, 1, 2], [3]]


@pytest.mark.parametrize("before", [0, 1, 2])
async def test_a_listener_hears_all_in_order(before):
    stream, heard = TurnStream("turn_1"), []
    for index in range(before):
        stream.put([event(index)])
    stream.listen(heard.extend)
    for index in range(before, 3):
        stream.put([event(index)])
    stream.end("view")
    assert [one.index for one in heard] == [0, 1, 2]
    assert await stream.result() == "view"


async def test_a_listener_of_a_stream_that_has_ended_hears_what_waits():
    stream, heard = TurnStream("turn_1"), []
    stream.put([event(0)])
    stream.end("view")
    stream.listen(heard.extend)
    assert [one.index for one in heard] == [0]
    assert await gathered(stream) == []
