"""How long questions about a large history take: of the catalog itself, and over HTTP.

The history is made up (`store/synthetic.py`); what needs states is asked of actors that are made
through the server, with a guest that costs nothing.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from statevisor.api.bench.report import Report, conditions, quantiles
from statevisor.api.bench.toy_server import ToyServer, Wire, serving
from statevisor.hypervisor.catalog_port import VersionQuery
from statevisor.hypervisor.recipes import Recipes
from statevisor.hypervisor.vocab import Op
from statevisor.store import synthetic
from statevisor.store.catalog import SqlCatalog
from statevisor.store.synthetic import Synthetic

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PART = 500  #: versions of one part of a walk
_WARM = 10  #: questions of a kind before the first that counts


@dataclass(frozen=True, slots=True)
class Dice:
    """Draws what is asked for."""

    history: Synthetic
    dice: random.Random

    def handle(self) -> str:
        """Any version."""
        return self.history.handle(self.dice)

    def actor(self) -> str:
        """Any actor's id."""
        return self.history.actor(self.dice.randrange(len(self.history.lives)))

    def long_life(self) -> str:
        """An actor with as many versions as any."""
        return self.history.actor(self.dice.randrange(min(4, len(self.history.lives))))

    def tag(self) -> str:
        """Any tag."""
        return self.dice.choice(self.history.tags)

    def team(self) -> str:
        """Any value of the label."""
        return str(self.dice.randrange(self.history.teams))

    def agent(self) -> str:
        """Any agent."""
        return f"agent-{self.dice.randrange(self.history.agents)}"

    def time_us(self) -> int:
        """Any time at which there was a version."""
        return self.dice.randrange(1, self.history.versions) * synthetic.TICK_US

    def layer(self) -> int:
        """A layer that the guest has."""
        return self.dice.randrange(2)


@dataclass(frozen=True, slots=True)
class Store:
    """Who is asked in the process."""

    catalog: SqlCatalog
    recipes: Recipes

    async def recipe(self, handle: str, *, whole: bool) -> object:
        """As the hypervisor reads it."""
        version = await self.catalog.version(handle)
        return await self.recipes.of(version, synthetic.MODEL, whole=whole)

    async def walk(self, handle: str, direction: str) -> int:
        """How many versions a whole walk meets."""
        part = await self.catalog.walk(handle, direction, _PART)
        met = len(part.nodes)
        while part.rest:
            part = await self.catalog.walk(part.rest, direction, _PART)
            met += len(part.nodes)
        return met


@dataclass(frozen=True, slots=True)
class Question:
    """One kind of question, asked of both."""

    ask: Callable[[Store, Dice], Awaitable[Any]]
    route: Callable[[Dice], str]
    size: Callable[[Any], int] | None = None  #: how many versions an answer has


def _search(**given: Any) -> VersionQuery:
    return VersionQuery(limit=50, **given)


def _iso(us: int) -> str:
    return (_EPOCH + timedelta(microseconds=us)).isoformat().replace("+00:00", "Z")


def _route(path: str, **query: Any) -> str:
    return f"{path}?{urlencode(query)}" if query else path


QUESTIONS: Mapping[str, Question] = {
    "version": Question(
        lambda s, d: s.catalog.version(d.handle()), lambda d: _route(f"/v1/versions/{d.handle()}")
    ),
    "version_by_tag": Question(
        lambda s, d: s.catalog.version(d.tag()), lambda d: _route(f"/v1/versions/{d.tag()}")
    ),
    "head_as_of": Question(
        lambda s, d: s.catalog.as_of(d.long_life(), synthetic.TICK_US * d.history.versions),
        lambda d: _route(
            f"/v1/actors/{d.long_life()}/head", at=_iso(synthetic.TICK_US * d.history.versions)
        ),
    ),
    "versions_of_an_actor": Question(
        lambda s, d: s.catalog.versions(d.actor(), None, 50),
        lambda d: _route(f"/v1/actors/{d.actor()}/versions", limit=50),
    ),
    "ancestors_50": Question(
        lambda s, d: s.catalog.lineage(d.handle(), "ancestors", 1000, 50),
        lambda d: _route(f"/v1/versions/{d.handle()}/lineage", direction="ancestors", limit=50),
        lambda found: len(found[0]),
    ),
    "descendants_50": Question(
        lambda s, d: s.catalog.lineage(d.handle(), "descendants", 1000, 50),
        lambda d: _route(f"/v1/versions/{d.handle()}/lineage", direction="descendants", limit=50),
        lambda found: len(found[0]),
    ),
    "ancestors_50_hops": Question(
        lambda s, d: s.catalog.lineage(d.handle(), "ancestors", 50, 10_000),
        lambda d: _route(f"/v1/versions/{d.handle()}/lineage", direction="ancestors", depth=50),
        lambda found: len(found[0]),
    ),
    "descendants_50_hops": Question(
        lambda s, d: s.catalog.lineage(d.handle(), "descendants", 50, 10_000),
        lambda d: _route(f"/v1/versions/{d.handle()}/lineage", direction="descendants", depth=50),
        lambda found: len(found[0]),
    ),
    "common_ancestor": Question(
        lambda s, d: s.catalog.common_ancestor(d.handle(), d.handle()),
        lambda d: _route("/v1/lineage/common-ancestor", a=d.handle(), b=d.handle()),
    ),
    "is_ancestor": Question(
        lambda s, d: s.catalog.is_ancestor(d.handle(), d.handle()),
        lambda d: _route("/v1/lineage/is-ancestor", a=d.handle(), b=d.handle()),
    ),
    "blame": Question(
        lambda s, d: s.catalog.blame(d.handle(), d.layer()),
        lambda d: _route("/v1/lineage/blame", v=d.handle(), layer=d.layer()),
    ),
    "recipe": Question(
        lambda s, d: s.recipe(d.handle(), whole=False),
        lambda d: _route(f"/v1/versions/{d.handle()}/recipe"),
    ),
    "recipe_whole": Question(
        lambda s, d: s.recipe(d.handle(), whole=True),
        lambda d: _route(f"/v1/versions/{d.handle()}/recipe", whole="true"),
    ),
    "search_label": Question(
        lambda s, d: s.catalog.search(_search(label=("team", d.team()))),
        lambda d: _route("/v1/versions", label=f"team={d.team()}"),
    ),
    "search_agent": Question(
        lambda s, d: s.catalog.search(_search(agent=d.agent(), since_us=d.time_us())),
        lambda d: _route("/v1/versions", agent=d.agent(), since=_iso(d.time_us())),
    ),
    "search_time": Question(
        lambda s, d: s.catalog.search(_search(since_us=d.time_us())),
        lambda d: _route("/v1/versions", since=_iso(d.time_us())),
    ),
    "search_kind": Question(
        lambda s, d: s.catalog.search(_search(op=Op.MUTATE, since_us=d.time_us())),
        lambda d: _route("/v1/versions", op="mutate", since=_iso(d.time_us())),
    ),
    "search_page": Question(
        lambda s, d: s.catalog.search(_search(after=d.handle())),
        lambda d: _route("/v1/versions", after=d.handle()),
    ),
}


def run(
    versions: int, rounds: int, *, seed: int = 1, statistics: bool = False, scratch: Path | None
) -> Report:
    """Build a history below `scratch`, ask everything `rounds` times, take it away again."""
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        began = time.perf_counter()
        history = synthetic.build(folder, versions, seed=seed, statistics=statistics)
        built = time.perf_counter() - began
        report: dict[str, Any] = {
            "bench": "lineage",
            "conditions": conditions(),
            "history": {
                "versions": history.versions,
                "actors": len(history.lives),
                "forks": history.forks,
                "merges": history.merges,
                "segments": history.segments,
                "longest_life": max(history.lives),
                "statistics": statistics,
                "build_s": round(built, 1),
                "bytes_per_version": round(_size(folder) / history.versions),
            },
        }
        report["in_process"] = asyncio.run(_in_process(folder, history, rounds, seed))
        with serving(folder, synthetic.MODEL) as server:
            wire = Wire(server.url)
            try:
                # first: later answers are made whole, and take more memory than a stream may
                report["streams"] = _streams(wire, server, history)
                report["http"] = _over_http(wire, history, rounds, seed)
                report["http"] |= _with_states(wire, rounds)
            finally:
                wire.close()
    return report


async def _in_process(folder: Path, history: Synthetic, rounds: int, seed: int) -> dict[str, Any]:
    catalog = await SqlCatalog.open(folder)
    store = Store(catalog, Recipes(catalog))
    found: dict[str, Any] = {}
    try:
        for name, question in QUESTIONS.items():
            dice = Dice(history, random.Random(seed))
            wall, spent, sizes = [], [], []
            for n in range(-_WARM, rounds):
                begin, cpu = time.perf_counter(), time.process_time()
                answer = await question.ask(store, dice)
                if n >= 0:
                    wall.append((time.perf_counter() - begin) * 1e3)
                    spent.append((time.process_time() - cpu) * 1e3)
                    if question.size is not None:
                        sizes.append(question.size(answer))
            found[name] = {"ms": quantiles(wall), "cpu_ms_p50": quantiles(spent)["p50"]}
            if sizes:
                found[name] |= {
                    "versions": quantiles([float(one) for one in sizes], digits=0),
                    "us_per_version": round(sum(wall) / sum(sizes) * 1e3, 1),
                }
        dice = Dice(history, random.Random(seed))
        for way in ("ancestors", "descendants"):
            found[f"all_{way}"] = await _whole(store, dice, way, max(3, rounds // 20))
    finally:
        await catalog.close()
    return found


async def _whole(store: Store, dice: Dice, way: str, rounds: int) -> dict[str, Any]:
    """Whole walks from any version: how long they take, and how many versions they meet."""
    wall, met = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        met.append(await store.walk(dice.handle(), way))
        wall.append((time.perf_counter() - begin) * 1e3)
    return {
        "ms": quantiles(wall),
        "versions": quantiles([float(one) for one in met], digits=0),
        "versions_per_s": round(sum(met) / sum(wall) * 1e3),
    }


def _over_http(wire: Wire, history: Synthetic, rounds: int, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, question in QUESTIONS.items():
        dice = Dice(history, random.Random(seed))
        wall = []
        for n in range(-_WARM, rounds):
            route = question.route(dice)
            begin = time.perf_counter()
            wire.get(route)
            if n >= 0:
                wall.append((time.perf_counter() - begin) * 1e3)
        found[name] = {"ms": quantiles(wall)}
    return found


def _with_states(wire: Wire, rounds: int) -> dict[str, Any]:
    """What compares or derives states: asked of two forks that said different things."""
    wire.post("/v1/actors", {"name": "state-a", "prompt": "Once upon a time. " * 20})
    wire.post("/v1/actors/state-a/fork", {"names": ["state-b"]})
    for name in ("state-a", "state-b"):
        wire.post(f"/v1/actors/{name}/append", {"prompt": f" {name} goes on."})
        wire.post(f"/v1/actors/{name}/snapshot?wait=true", {"tag": name})
    found: dict[str, Any] = {}
    asks: Mapping[str, Callable[[], object]] = {
        "diff": lambda: wire.get("/v1/versions/state-a/diff/state-b"),
        "verify": lambda: wire.post("/v1/versions/state-a/verify", {}),
    }
    for kind, ask in asks.items():
        wall = []
        for n in range(-_WARM, rounds):
            begin = time.perf_counter()
            ask()
            if n >= 0:
                wall.append((time.perf_counter() - begin) * 1e3)
        found[kind] = {"ms": quantiles(wall)}
    return found


def _streams(wire: Wire, server: ToyServer, history: Synthetic) -> dict[str, Any]:
    """The past of a very long life in every form, all that came of the first version in one.

    With the memory of the server: a stream must not need more for more versions.
    """
    found: dict[str, Any] = {"server_peak_mb": {"before": server.peak_mb()}}
    for form in ("json", "dot", "mermaid", "prov"):
        last = f"{history.actor(0)}@{history.lives[0] - 1}"
        found[form] = _stream(wire, last, direction="ancestors", format=form)
    found["server_peak_mb"]["after_a_life"] = server.peak_mb()
    found["family"] = _stream(wire, f"{history.actor(0)}@0", direction="descendants")
    found["server_peak_mb"]["after_a_family"] = server.peak_mb()
    return found


def _stream(wire: Wire, handle: str, **query: str) -> dict[str, Any]:
    begin = time.perf_counter()
    nbytes, versions = 0, 0
    for piece in wire.pieces(_route(f"/v1/versions/{handle}/lineage", stream="true", **query)):
        nbytes += len(piece)
        versions += piece.count(b'"object":"version"')
    told = {"s": round(time.perf_counter() - begin, 3), "bytes": nbytes}
    return {**told, "versions": versions} if versions else told


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
