"""Bytes, durations and ages, as people write and read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import typer

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\Z", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)\Z")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_size(text: str) -> int:
    """`512`, `4K`, `1.5GiB` as bytes; a plain letter means the power of 1024 too."""
    match = _SIZE.match(text.strip())
    if not match:
        raise typer.BadParameter(f"{text!r} is not a size; write 4096, 64M or 2GiB")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def parse_duration(text: str) -> float:
    """`90`, `90s`, `15m`, `1h`, `2d` as seconds."""
    match = _DURATION.match(text.strip())
    if not match:
        raise typer.BadParameter(f"{text!r} is not a duration; write 90s, 15m, 1h or 2d")
    return float(match[1]) * _SECONDS[match[2]]


def parse_time(text: str) -> str:
    """A time as it is; a duration (`90s`, `1h`) as the time so long ago."""
    if not _DURATION.match(text.strip()):
        return text
    try:
        return (datetime.now(UTC) - timedelta(seconds=parse_duration(text))).isoformat()
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is before all time") from None


def size(nbytes: int | None) -> str | None:
    """Bytes with a binary unit."""
    if nbytes is None:
        return None
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def age(stamp: str, now: datetime | None = None) -> str:
    """How long ago an ISO time stamp was, in its largest unit."""
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(stamp)).total_seconds()
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return f"{max(0, int(seconds))}s"
