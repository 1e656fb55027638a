"""`statevisor serve` as it is, but for its guest: the toy, so that a start takes no second."""

from __future__ import annotations

import sys

from statevisor.api import compose
from statevisor.api.cli.main import main
from statevisor.guests.toy import ToyGuest


def toy(config: object) -> ToyGuest:
    return ToyGuest(slots=4)


if __name__ == "__main__":
    compose.build_guest = toy  # type: ignore[assignment]
    sys.exit(main(["serve", *sys.argv[1:]]))
