"""Identifiers that sort by creation: prefix, microseconds, a counter and random bits.

What is made at once follows from the first of it, ids and seeds and names, so that whoever keeps
many can keep the first and their number.
"""

from __future__ import annotations

import re
import secrets

from statevisor.hypervisor.ports import Clock
from statevisor.hypervisor.vocab import ACTOR_PREFIX, MAX_SEED

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PLAIN = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")
_ACTOR = re.compile(rf"{ACTOR_PREFIX}([{_ALPHABET}]{{12}})([{_ALPHABET}]{{8}})\Z")
_CALLED = re.compile(rf"actor-([{_ALPHABET}]{{2}})([{_ALPHABET}]{{8}})\Z")
#: So many actors can have the same random bits: the names that they get then differ in their time.
ALIKE = 32 * 32
#: Of the generator of seeds (splitmix64).
_STEP, _MIX, _WORD = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB), 2**64 - 1


_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)


def _base32(value: int, digits: int) -> str:
    """An even number of digits: a page of actors has hundreds of them."""
    return "".join([_PAIRS[value >> shift & 1023] for shift in range(5 * digits - 10, -1, -10)])


def _value(digits: str) -> int:
    return int(digits.translate(_PLAIN), 32)


def actor_id(time: int, salt: int) -> str:
    """The id of the actor of a time that has these random bits."""
    return f"{ACTOR_PREFIX}{_base32(time, 12)}{_base32(salt, 8)}"


def parts(key: str) -> tuple[int, int] | None:
    """Time and random bits of an actor's id; None: it is no id of this form."""
    found = _ACTOR.match(key)
    return None if found is None else (_value(found[1]), _value(found[2]))


def own_name(key: str) -> str:
    """What an actor is called if nobody names it."""
    return f"actor-{key[-10:]}"


def name_at(time: int, salt: int) -> str:
    """The own name of the actor of a time that has these random bits."""
    return f"actor-{_base32(time & ALIKE - 1, 2)}{_base32(salt, 8)}"


def name_parts(name: str) -> tuple[int, int] | None:
    """The time, modulo `ALIKE`, and the random bits in an own name; None: it is none."""
    found = _CALLED.match(name)
    return None if found is None else (_value(found[1]), _value(found[2]))


def nth_seed(first: int, n: int) -> int:
    """The seed of the nth of several actors whose first has this one; below 2^53 as well."""
    if n == 0:
        return first
    word = (first + n * _STEP) & _WORD
    word = (word ^ word >> 30) * _MIX[0] & _WORD
    word = (word ^ word >> 27) * _MIX[1] & _WORD
    return (word ^ word >> 31) % MAX_SEED


class Ids:
    """Makes identifiers; later ones sort after earlier ones, also when the clock steps back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0

    def new(self, prefix: str) -> str:
        """`prefix_` and 20 characters: 60 bits of time and count, 40 random bits."""
        return f"{prefix}_{_base32(self._take(1), 12)}{_base32(secrets.randbits(40), 8)}"

    def actors(self, count: int) -> list[str]:
        """Ids of actors made at once: one count after another, `ALIKE` of them with one salt."""
        made: list[str] = []
        while len(made) < count:
            some, salt = min(ALIKE, count - len(made)), secrets.randbits(40)
            first = self._take(some)
            made += [actor_id(first + n, salt) for n in range(some)]
        return made

    def _take(self, count: int) -> int:
        """The first of so many times that are no other's."""
        first = max(self._last + 1, self._clock.now_us())
        self._last = first + count - 1
        return first

    def seed(self) -> int:
        """A fresh sampler seed, below 2^53."""
        return secrets.randbelow(MAX_SEED)
