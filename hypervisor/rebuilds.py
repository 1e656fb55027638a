"""Rebuilds in progress, so that all who wake at one place share one replay."""

from __future__ import annotations

import asyncio

#: A place as lineage.same_state names it.
Key = tuple[int, int]


class Followers:
    """The slots that get a copy of what one leader rebuilds."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._copying = False

    @property
    def slots(self) -> tuple[int, ...]:
        """Who waits."""
        return tuple(self._waiting)

    async def wait(self, slot: int) -> bool:
        """Wait for the copy; False if there is none. A caller that is cancelled mid-copy stays."""
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[slot] = told
        try:
            return await asyncio.shield(told)
        except asyncio.CancelledError:
            if self._copying:
                await told  # the slot must not be given away while it is written
            self._waiting.pop(slot, None)
            raise

    def close(self) -> tuple[int, ...]:
        """From now on the slots are written; nobody leaves any more."""
        self._copying = True
        return self.slots

    def tell(self, copied: bool) -> None:
        """End the wait."""
        for told in self._waiting.values():
            if not told.done():
                told.set_result(copied)


class Rebuilds:
    """Who rebuilds what right now."""

    def __init__(self) -> None:
        self._leading: dict[Key, Followers] = {}

    def of(self, key: Key) -> Followers | None:
        """Those who follow the rebuild of a place, if somebody is at it."""
        return self._leading.get(key)

    def begin(self, key: Key) -> Followers:
        """Lead the rebuild of a place."""
        followers = self._leading[key] = Followers()
        return followers

    def end(self, key: Key) -> None:
        """Whoever comes now finds the leader's slot, or leads anew."""
        del self._leading[key]
