"""A long history costs what a short one costs: counted in rows and bytes, not in time."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from statevisor.api.clock import SystemClock
from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.catalog_port import NewActor
from statevisor.hypervisor.commands import (
    Append,
    Fork,
    Generate,
    Hibernate,
    Resume,
    Rollback,
    Snapshot,
)
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.said import Said
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.visor import Visor
from statevisor.store import prepared
from statevisor.store.catalog import SqlCatalog
from statevisor.store.host import HostTier
from statevisor.store.images import SlabImages

SHORT, LONG = 1_000, 1_000_000
PENALISED = SamplerSettings(frequency_penalty=0.5)


class Meter:
    def observe(self, name: str, value: float, **labels: str) -> None: ...
    def count(self, name: str, n: float = 1, **labels: str) -> None: ...


@dataclass
class Read:
    """What statements have given back."""

    statements: int = 0
    rows: int = 0
    nbytes: int = 0


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """Everything that is read, by whatever thread."""
    tally, execute = Read(), prepared.execute

    def counted(*args: Any, **kwargs: Any) -> Any:
        rows = execute(*args, **kwargs)
        tally.statements += 1
        tally.rows += len(rows)
        tally.nbytes += sum(len(one) for row in rows for one in row if isinstance(one, str | bytes))
        return rows

    monkeypatch.setattr(prepared, "execute", counted)
    return tally


async def powered(folder: Path) -> tuple[Visor, SqlCatalog, SlabImages]:
    catalog = await SqlCatalog.open(folder)
    incarnation = await catalog.claim("test")
    images = SlabImages.open(
        folder / "images", await catalog.live_extents(), incarnation=incarnation
    )
    visor = Visor(
        guests=[ToyGuest(slots=4)],
        catalog=catalog,
        images=images,
        frames=lambda memory, row: HostTier(memory, row, checksum=zlib.crc32),
        config=VisorConfig(host_bytes=160, recover_actors=0),
        clock=SystemClock(),
        meter=Meter(),
    )
    await visor.start(incarnation)
    return visor, catalog, images


async def grow(folder: Path, tokens: int) -> None:
    """An actor with so many tokens behind it and an image where it stands; its row is made up."""
    visor, catalog, images = await powered(folder)
    new = NewActor(id="act_1", name="a", model="toy", seed=1, labels={})
    record = await catalog.create(new, bytes(range(97, 122)) * (tokens // 25))
    states = visor._batchers["toy"].residency.states
    meta = states.meta(record.position, record.position - 1, (121,))
    await states.keep(record.segment, record.position, memoryview(bytearray(80)), meta)
    await close(visor, images)


async def close(visor: Visor, images: SlabImages) -> None:
    await visor.close()
    await images.close()


async def lives(folder: Path, read: Read) -> dict[str, tuple[int, int, int]]:
    """What every operation reads, from the start on."""
    costs: dict[str, tuple[int, int, int]] = {}

    async def counted(name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        before = (read.statements, read.rows, read.nbytes)
        result = await work()
        after = (read.statements, read.rows, read.nbytes)
        costs[name] = tuple(b - a for a, b in zip(before, after, strict=True))  # type: ignore[assignment]
        return result

    visor, _, images = await counted("start", lambda: powered(folder))

    async def say(**more: Any) -> None:
        stream = await visor.generate(
            Generate(actor="a", max_tokens=8, ignore_eos=True, settings=PENALISED, **more)
        )
        await stream.result()

    await counted("resume", lambda: visor.resume(Resume(actor="a")))
    await counted("append", lambda: visor.append(Append(actor="a", prompt="and on it goes")))
    await counted("generate", lambda: say(prompt="?"))
    await counted("go on", say)
    await counted("snapshot", lambda: visor.snapshot(Snapshot(actor="a")))
    await counted("fork", lambda: visor.fork(Fork(actor="a", count=3)))
    await counted("hibernate", lambda: visor.hibernate(Hibernate(actor="a")))
    head = (await visor.actor("a")).record.position
    await counted("cost", lambda: visor.cost(Rollback(actor="a", to=head - 5)))
    await counted("rollback", lambda: visor.rollback(Rollback(actor="a", to=head - 5)))
    await counted("resume there", lambda: visor.resume(Resume(actor="a")))
    await counted("list", visor.actors)
    await close(visor, images)
    return costs


async def both(folder: Path, read: Read) -> list[dict[str, tuple[int, int, int]]]:
    found = []
    for tokens in (SHORT, LONG):
        await grow(folder / str(tokens), tokens)
        found.append(await lives(folder / str(tokens), read))
    return found


#: Of one operation, by how many commits its tokens happened to share; a run of a long history has
#: 16,384 tokens, so that all of it is 62 rows.
_GROUPS = 30
#: A run of tokens is read whole: the last one of a long history is that much longer.
_RUN_BYTES = 4 * 16_384


async def test_no_operation_reads_more_of_a_longer_history(tmp_path: Path, read: Read) -> None:
    short, long = await both(tmp_path, read)

    for name, (statements, rows, nbytes) in long.items():
        assert abs(statements - short[name][0]) <= _GROUPS, name
        assert abs(rows - short[name][1]) <= _GROUPS, name
        assert nbytes <= short[name][2] + 2 * _RUN_BYTES, name


async def test_counts_that_read_all_of_it_would_be_seen(
    tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def all_of_it(self: Said, segment: int, base: int, end: int) -> list[int]:
        run: list[int] = []
        for piece in await self._catalog.transcript(segment, base, end):
            run = [*run, *piece.tokens] if piece.kind == "generated" else []
        return run

    monkeypatch.setattr(Said, "_said", all_of_it)
    short, long = await both(tmp_path, read)

    assert long["go on"][1] > short["go on"][1] + _GROUPS
    assert long["go on"][2] > 1_000_000
