"""When an image pays: a bound on what a crash makes the server replay, and on what it writes.

An image saves the replay of all tokens before it and costs its bytes on the disk. So one is due
when replaying what has come since the last would take longer than `replay_s`, and only as often as
a share of the disk's measured speed allows.
"""

from __future__ import annotations

from statevisor.hypervisor.ports import Clock

#: Share of what is known that the newest measurement takes the place of.
_FRESH = 0.2


class CheckpointPolicy:
    """Decides for one guest; fed with what replays and writes have taken."""

    def __init__(
        self,
        *,
        image_bytes: int,
        most_tokens: int,
        clock: Clock,
        replay_s: float = 1.0,
        share: float = 0.15,
        disk_bytes_s: float = 100e6,
    ) -> None:
        """`most_tokens` bounds the distance whatever the speed; `disk_bytes_s` is a first guess."""
        self._image_bytes = image_bytes
        self._most_tokens = most_tokens
        self._clock = clock
        self._replay_s = replay_s
        self._share = share
        self._disk_bytes_s = disk_bytes_s
        self._replayed = self._replaying_s = 0.0
        self._credit = float(4 * image_bytes)
        self._credited = clock.monotonic()

    @property
    def distance(self) -> int:
        """Tokens after which an image is due."""
        speed = self.tokens_s
        if speed is None:
            return self._most_tokens
        return max(1, min(self._most_tokens, int(speed * self._replay_s)))

    @property
    def tokens_s(self) -> float | None:
        """Speed of replay, a running mean over tokens; None until something was replayed."""
        return self._replayed / self._replaying_s if self._replaying_s else None

    def due(self, tokens: int) -> bool:
        """Whether `tokens` since the last image are worth one now; takes what it costs if so."""
        if tokens < self.distance:
            return False
        now = self._clock.monotonic()
        earned = (now - self._credited) * self._share * self._disk_bytes_s
        # the cap lets a burst of actors through, but no more than a second's worth of the disk
        most = max(4.0 * self._image_bytes, self._share * self._disk_bytes_s)
        self._credit = min(most, self._credit + earned)
        self._credited = now
        if self._credit < self._image_bytes:
            return False
        self._credit -= self._image_bytes
        return True

    def replayed(self, tokens: int, seconds: float) -> None:
        """A replay took so long."""
        if tokens and seconds > 0:
            # sums, not a mean of speeds: a few tokens take as long as a step takes
            self._replayed += tokens - _FRESH * self._replayed
            self._replaying_s += seconds - _FRESH * self._replaying_s

    def wrote(self, nbytes: int, seconds: float) -> None:
        """An image was made durable in so long."""
        if seconds > 0:
            self._disk_bytes_s += _FRESH * (nbytes / seconds - self._disk_bytes_s)
