"""`statevisor` and `python -m statevisor.api`."""

from __future__ import annotations

import sys

from statevisor.api.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
