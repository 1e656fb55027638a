"""What a client command loads: `statevisor ls` must answer at once, whatever the server needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAVY = (
    "aiohttp",
    "alembic",
    "asyncio",
    "fla",
    "numpy",
    "pydantic",
    "rich",
    "sqlalchemy",
    "statevisor.guests",
    "statevisor.migrations",
    "statevisor.store",
    "torch",
    "transformers",
    "triton",
    "yaml",
)


def loaded(*words: str, also: str = "") -> list[str]:
    """The heavy modules in a fresh interpreter after one command; nobody listens on port 9."""
    program = (
        "import sys\n"
        "from statevisor.api.__main__ import main\n"
        f"code = main({list(words)!r})\n"
        f"{also}\n"
        "print(code, *(name for name in sys.argv[1:] if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *_HEAVY],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    code, *found = done.stdout.splitlines()[-1].split()
    assert code == "5", done.stderr
    return found


@pytest.mark.parametrize(
    "words",
    [
        ("ls",),
        ("generate", "alice", "hello"),
        ("fork", "alice", "-n", "8"),
        ("export", "alice@1", "/dev/null"),
        ("lineage", "alice"),
        ("tiers",),
    ],
)
def test_a_client_command_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    assert loaded(*words, "--url", "http://127.0.0.1:9") == []


def test_the_look_at_modules_can_fail() -> None:
    assert loaded("ls", "--url", "http://127.0.0.1:9", also="import asyncio") == ["asyncio"]
