"""A life of the whole hypervisor: visor, catalog and images under random work, until it ends.

    python life.py ORDER

where ORDER is JSON: see `live`. Whatever the life is told is done, it writes to `acks` at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from statevisor.hypervisor.errors import StatevisorError
from statevisor.store.files import Files

sys.path.insert(0, str(Path(__file__).parent))  # also where PYTHONSAFEPATH keeps it out
import recorder  # isort: skip  # beside this file
from acks import Acks  # isort: skip
from worker import Worker  # isort: skip
from world import make_guest, open_world  # isort: skip


async def live(order: dict[str, Any], files: Files | None = None) -> recorder.Log | None:
    """One life: `folder`, `acks` (a file), `number`, `guest`, and `steps` of each of 3 workers.

    `tour`: one worker that does everything once. `end`: drain and close at the end. `record`: a
    file for the log of recorder.py, which is returned.
    """
    guest = make_guest(order["guest"])
    log = None
    if order.get("record"):
        log = recorder.Log(Path(order["record"]))
        files = recorder.RecordedFiles(log)
        recorder.watch_catalog(Path(order["folder"]), log)
    acks, number = Acks(Path(order["acks"]), log), order["number"]
    world = await open_world(Path(order["folder"]), guest, files=files)
    workers = [
        Worker(world, acks, random.Random(f"{number}/{n}"), f"n{number}w{n}")
        for n in range(1 if order.get("tour") else 3)
    ]
    try:
        if order.get("tour"):
            await workers[0].tour()
        else:
            await asyncio.gather(*(worker.work(order["steps"]) for worker in workers))
    except StatevisorError as error:
        acks.refused(error)
        return log
    if order.get("end"):
        await world.visor.drain()
        await world.close()
    return log


def main() -> None:
    order = json.loads(sys.argv[1])
    if order.get("mutant"):
        import mutants

        mutants.apply(order["mutant"])
    log = asyncio.run(live(order))
    if log is not None:
        log.end()
    os._exit(0)


if __name__ == "__main__":
    main()
