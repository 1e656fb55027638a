"""Where a prompt comes from: the command line, or standard input."""

from __future__ import annotations

import sys


def read_prompt(text: str | None) -> str | None:
    """The text; `-` stands for everything on standard input."""
    return sys.stdin.read() if text == "-" else text
