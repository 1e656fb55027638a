"""What a very long history costs an actor: its turns, its sleep, its wake, the server's start.

The same actor twice, with few tokens behind it and with very many. Its state is made up and stands
in an image: none of what is measured depends on its bytes. The model is the toy; what is left is
the hypervisor and its store. Each length is measured in a process of its own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
import zlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from statevisor.api.bench.report import Report, conditions, quantiles
from statevisor.api.clock import SystemClock
from statevisor.api.metrics import PrometheusMeter
from statevisor.guests.toy import ToyGuest
from statevisor.hypervisor.catalog_port import NewActor
from statevisor.hypervisor.commands import Append, Generate, Hibernate, Resume
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.errors import StatevisorError
from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.visor import Visor
from statevisor.store.catalog import SqlCatalog
from statevisor.store.host import HostTier
from statevisor.store.images import SlabImages

SHORT: Final = 1_000
_TOKENS = 16  #: of one append, and of one answer
_WARM = 5


def run(tokens: int, rounds: int, *, scratch: Path | None) -> Report:
    """Measure both lengths, in folders below `scratch`."""
    found = {}
    for length in (SHORT, tokens):
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            found[length] = _in_a_process(Path(folder), length, rounds)
    short, long = found[SHORT], found[tokens]
    ratios = {
        name: round(long[name]["p50"] / short[name]["p50"], 2)
        for name, value in short.items()
        if isinstance(value, dict)
    }
    return {
        "bench": "history",
        "conditions": conditions(),
        "rounds": rounds,
        "short": {"tokens": SHORT, **short},
        "long": {"tokens": tokens, **long},
        "ratio_of_p50": ratios,
        "rss_bytes_more": long["rss_bytes"] - short["rss_bytes"],
    }


def _in_a_process(folder: Path, tokens: int, rounds: int) -> dict[str, Any]:
    spawn = multiprocessing.get_context("spawn")
    for work in (_made, _measured):
        mine, its = spawn.Pipe()
        child = spawn.Process(target=_child, args=(work, folder, tokens, rounds, its))
        child.start()
        its.close()
        try:
            found: dict[str, Any] = mine.recv()
        except EOFError:
            raise StatevisorError("a process of the measurement failed") from None
        finally:
            mine.close()
            child.join()
    return found


def _child(
    work: Callable[..., Awaitable[dict[str, Any]]],
    folder: Path,
    tokens: int,
    rounds: int,
    pipe: Connection,
) -> None:
    async def whole() -> dict[str, Any]:
        return await work(folder, tokens, rounds)

    pipe.send(asyncio.run(whole()))


class _Machine:
    """A hypervisor over one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._undo = AsyncExitStack()

    async def __aenter__(self) -> _Machine:
        self.catalog = await SqlCatalog.open(self._folder)
        incarnation = await self.catalog.claim("bench")
        self.images = SlabImages.open(
            self._folder / "images", await self.catalog.live_extents(), incarnation=incarnation
        )
        self._undo.push_async_callback(self.images.close)
        self.guest = ToyGuest(slots=4)
        self.visor = Visor(
            guests=[self.guest],
            catalog=self.catalog,
            images=self.images,
            frames=lambda memory, row: HostTier(memory, row, checksum=zlib.crc32),
            config=VisorConfig(host_bytes=160),
            clock=SystemClock(),
            meter=PrometheusMeter(),
        )
        await self.visor.start(incarnation)
        self._undo.push_async_callback(self.visor.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._undo.aclose()


async def _made(folder: Path, tokens: int, rounds: int) -> dict[str, Any]:
    """An actor with so many tokens behind it and an image where it stands."""
    async with _Machine(folder) as machine:
        new = NewActor(id="act_1", name="a", model=machine.guest.name, seed=1, labels={})
        record = await machine.catalog.create(new, [97 + at % 26 for at in range(tokens)])
        last = 97 + (tokens - 1) % 26
        meta = ImageMeta(
            layout=machine.guest.layout,
            fingerprints=machine.guest.fingerprints,
            position=tokens,
            absorbed=tokens - 1,
            pending=(last,),
        )
        row = memoryview(bytearray(machine.guest.layout.row_bytes))
        image = await machine.images.put(row, meta)
        await machine.catalog.add_image(record.segment, record.position, image)
    return {}


async def _measured(folder: Path, tokens: int, rounds: int) -> dict[str, Any]:
    began = _rss()
    starts = []
    for _ in range(3):
        at = time.perf_counter()
        async with _Machine(folder):
            starts.append((time.perf_counter() - at) * 1e3)
    async with _Machine(folder) as machine:
        visor = machine.visor
        await visor.resume(Resume(actor="a"))
        append = Append(actor="a", prompt=tuple(range(97, 97 + _TOKENS)))
        plain, penal = SamplerSettings(), SamplerSettings(frequency_penalty=0.5)

        async def say(settings: SamplerSettings) -> None:
            stream = await visor.generate(
                Generate(actor="a", max_tokens=_TOKENS, ignore_eos=True, settings=settings)
            )
            await stream.result()

        async def wake() -> None:
            await visor.resume(Resume(actor="a"))

        async def sleep() -> None:
            await visor.append(append)  # so that there is something to write
            await visor.hibernate(Hibernate(actor="a"))

        found: dict[str, Any] = {"start_ms": quantiles(starts, digits=3)}
        found["append_ms"] = await _timed(rounds, lambda: visor.append(append))
        found["generate_ms"] = await _timed(rounds, lambda: say(plain))
        found["generate_penalised_ms"] = await _timed(rounds, lambda: say(penal))
        found["resume_ms"] = await _timed(rounds, wake, before=sleep)
        found["rss_bytes"] = _rss() - began
    return found


async def _timed(
    rounds: int,
    work: Callable[[], Awaitable[Any]],
    before: Callable[[], Awaitable[Any]] | None = None,
) -> dict[str, float]:
    samples: list[float] = []
    for _ in range(rounds + _WARM):
        if before is not None:
            await before()
        at = time.perf_counter()
        await work()
        samples.append((time.perf_counter() - at) * 1e3)
    return quantiles(samples[_WARM:], digits=3)


def _rss() -> int:
    """Bytes of this process in memory."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
