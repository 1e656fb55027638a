"""The machine's time."""

from __future__ import annotations

import time


class SystemClock:
    """The Clock port."""

    def now_us(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()
