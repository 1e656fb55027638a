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
        stream.put(event(index))
    stream.end(None)
    assert await gathered(stream, most=4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_a_token_that_comes_alone_is_not_held_back():
    stream = TurnStream("turn_1")
    batches = aiter(stream.batches())
    for index in range(3):
        stream.put(event(index))
        assert [one.index for one in await asyncio.wait_for(anext(batches), 1)] == [index]
    stream.end(None)
    with pytest.raises(StopAsyncIteration):
        await anext(batches)


@pytest.mark.parametrize("count", [0, 1, 64, 65, 128])
async def test_nothing_is_lost_at_the_end(count):
    stream = TurnStream("turn_1")
    for index in range(count):
        stream.put(event(index))
    stream.fail(ValueError("x"))
    assert [one for batch in await gathered(stream) for one in batch] == list(range(count))
    with pytest.raises(ValueError, match="x"):
        await stream.result()
