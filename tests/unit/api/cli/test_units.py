"""Bytes, durations and ages."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import typer

from statevisor.api.cli.units import age, parse_duration, parse_size, parse_time, size


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4K", 4096),
        ("1.5GiB", 3 << 29),
        ("2mb", 2 << 20),
        ("1T", 1 << 40),
    ],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("1.5h", 5400), ("2d", 172800)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_a_time_may_be_so_long_ago() -> None:
    found = datetime.fromisoformat(parse_time("1h"))
    assert 3599 < (datetime.now(UTC) - found).total_seconds() < 3660
    assert parse_time("2026-01-02T03:04:05Z") == "2026-01-02T03:04:05Z"


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5.2", "4 potatoes"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_size(text)
    with pytest.raises(typer.BadParameter):
        parse_duration(text)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_bytes_are_shown_with_a_unit(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


@pytest.mark.parametrize(
    ("stamp", "text"),
    [
        ("2026-01-01T00:00:00.5Z", "0s"),
        ("2025-12-31T23:59:01Z", "59s"),
        ("2025-12-31T22:30:00Z", "1h"),
        ("2025-12-01T00:00:00Z", "31d"),
        ("2026-01-01T00:00:09Z", "0s"),
    ],
)
def test_ages(stamp: str, text: str) -> None:
    assert age(stamp, datetime(2026, 1, 1, tzinfo=UTC)) == text


def test_there_is_no_time_before_all_times() -> None:
    with pytest.raises(typer.BadParameter):
        parse_time("99999999999999999999d")
