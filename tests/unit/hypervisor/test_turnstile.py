"""Many who come at once pass a few at a time, in the order of coming."""

from __future__ import annotations

import asyncio

from statevisor.hypervisor.turnstile import Turnstile


async def test_a_turn_of_the_event_loop_lets_only_a_few_through() -> None:
    turnstile, passed = Turnstile(4), list[int]()

    async def come(number: int) -> None:
        await turnstile.through()
        passed.append(number)

    coming = [asyncio.create_task(come(number)) for number in range(11)]
    seen = []
    while len(passed) < 11:
        await asyncio.sleep(0)
        seen.append(len(passed))
    assert passed == list(range(11))
    assert max(b - a for a, b in zip([0, *seen], seen, strict=False)) == 4
    await asyncio.gather(*coming)


async def test_who_comes_alone_passes_at_once() -> None:
    turnstile = Turnstile(2)
    for _ in range(20):
        passing = turnstile.through()
        try:
            passing.send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("it waits")
        await asyncio.sleep(0)


async def test_nobody_overtakes_who_waits() -> None:
    turnstile, passed = Turnstile(1), list[str]()

    async def come(name: str) -> None:
        await turnstile.through()
        passed.append(name)

    early = [asyncio.create_task(come(name)) for name in "abc"]
    await asyncio.sleep(0)
    late = [asyncio.create_task(come(name)) for name in "de"]
    await asyncio.gather(*early, *late)
    assert passed == ["a", "b", "c", "d", "e"]


async def test_who_goes_away_while_waiting_takes_no_place() -> None:
    turnstile, passed = Turnstile(1), list[int]()

    async def come(number: int) -> None:
        await turnstile.through()
        passed.append(number)

    coming = [asyncio.create_task(come(number)) for number in range(5)]
    await asyncio.sleep(0)
    for number in (1, 2):
        coming[number].cancel()
    await asyncio.gather(*coming, return_exceptions=True)
    assert passed == [0, 3, 4]
    await asyncio.wait_for(turnstile.through(), 1)
