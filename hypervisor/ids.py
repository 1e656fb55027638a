"""Identifiers that sort by creation: prefix, microseconds, a counter and random bits."""

from __future__ import annotations

import secrets

from statevisor.hypervisor.ports import Clock
from statevisor.hypervisor.vocab import MAX_SEED

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def _base32(value: int, digits: int) -> str:
    out = []
    for _ in range(digits):
        out.append(_ALPHABET[value & 31])
        value >>= 5
    return "".join(reversed(out))


class Ids:
    """Makes identifiers; later ones sort after earlier ones, also when the clock steps back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0

    def new(self, prefix: str) -> str:
        """`prefix_` and 20 characters: 60 bits of time and count, 40 random bits."""
        self._last = max(self._last + 1, self._clock.now_us())
        return f"{prefix}_{_base32(self._last, 12)}{_base32(secrets.randbits(40), 8)}"

    def seed(self) -> int:
        """A fresh sampler seed, below 2^53."""
        return secrets.randbelow(MAX_SEED)
