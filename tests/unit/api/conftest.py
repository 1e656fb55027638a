"""A scripted visor: it records the commands it gets and answers what a test tells it to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from statevisor.api.app import build_app
from statevisor.api.front import serve_app
from statevisor.api.host import Host
from statevisor.api.metrics import PrometheusMeter
from statevisor.api.settings import ServerSettings
from statevisor.api.workers.port import Port
from statevisor.api.workers.process import WorkerHost
from statevisor.api.workers.remote import RelayMeter, RemoteVisor
from statevisor.hypervisor import commands as c
from statevisor.hypervisor.catalog_port import Finding
from statevisor.hypervisor.plan import Logprobs
from statevisor.hypervisor.ports import FamilyDiff
from statevisor.hypervisor.recipes import RecipeView, RuleStep
from statevisor.hypervisor.records import ActorRecord, ImageRef, TokenRun, VersionRecord
from statevisor.hypervisor.stream import TurnStream
from statevisor.hypervisor.vocab import Bound, FinishReason, Op, Source, Tier

#: 2026-01-02T03:04:05.000006Z
TIME_US = 1_767_323_045_000_006
ACTOR = c.ActorView(
    record=ActorRecord(
        id="act_1",
        name="alice",
        model="demo",
        segment=1,
        position=123,
        head=3,
        generation=17,
        seed=7,
        epoch=1,
        parent="bob@2",
        labels={"team": "a"},
        created_at=TIME_US,
        updated_at=TIME_US,
    ),
    status="idle",
    tier=Tier.GPU,
    durable_position=120,
)
VERSION = VersionRecord(
    actor_id="act_1",
    actor="alice",
    seq=4,
    segment=1,
    position=123,
    op=Op.MUTATE,
    parents=("alice@3",),
    digest="blake3:ab",
    nbytes=99,
    rule="decay",
    rule_version=1,
    params={"alpha": 0.5},
    tags=("best",),
    created_at=TIME_US,
)
TURN = c.TurnView(
    id="turn_1",
    actor="alice",
    text="hi",
    token_ids=(104, 105),
    finish=FinishReason.LENGTH,
    position=150,
    durable_position=150,
    generation=18,
    prompt_tokens=5,
)
PLACE = (1.0, 2.0, 0.5, None)
ANSWERS: Mapping[str, Any] = {
    "create": ACTOR,
    "actor": ACTOR,
    "actors": ((ACTOR, ACTOR), True),
    "update": ACTOR,
    "delete": None,
    "append": TURN,
    "cancel": "turn_1",
    "snapshot": VERSION,
    "fork": (ACTOR, ACTOR),
    "mutate": VERSION,
    "rollback": ACTOR,
    "cost": c.CostView(
        actor="alice",
        position=100,
        source=Source.IMAGE,
        source_position=64,
        image="blake3:ab",
        tokens=36,
        replay_s=0.0125,
        bound=Bound.DENSE,
        bound_tokens=50,
    ),
    "hibernate": ACTOR,
    "resume": ACTOR,
    "versions": ((VERSION,), False),
    "transcript": c.TranscriptView(
        actor="alice", start=0, stop=2, token_ids=(1, 2), text="ab", segments=((0, 2, "prompt"),)
    ),
    "lineage": c.LineageView(
        nodes=(VERSION,), edges=(("alice@3", "alice@4", "mutate"),), truncated=True
    ),
    "version": VERSION,
    "diff": c.DiffView(
        a=VERSION,
        b=VERSION,
        common_ancestor="alice@1",
        tokens_a=(1,),
        tokens_b=(2,),
        shared_tokens=9,
        families=(
            FamilyDiff(family="wkv", layer=0, norm_a=1.0, norm_b=2.0, distance=0.5, cosine=None),
        ),
    ),
    "export": b"safetensors bytes",
    "verify": c.VerifyView(ok=True, checked=9, digest="blake3:ab", expected=None),
    "import_image": VERSION,
    "search": ((VERSION,), False),
    "head": VERSION,
    "is_ancestor": True,
    "recipe": RecipeView(
        version=VERSION,
        model="demo",
        start=ImageRef(
            digest="blake3:cd",
            nbytes=9,
            slab=0,
            offset=0,
            length=4096,
            layout="l",
            weights="w",
            build="b",
        ),
        position=7,
        steps=(
            TokenRun(position=7, kind="prompt", tokens=(1, 2)),
            RuleStep(
                position=9,
                version="alice@4",
                rule="blend",
                rule_version=1,
                params={"weights": [0.5]},
                select={},
                others=("bob@1",),
                before="blake3:ef",
                digest=None,
                build="b",
            ),
        ),
    ),
    "common_ancestor": VERSION,
    "blame": None,
    "tiers": (
        c.TierView(
            tier=Tier.GPU,
            slots_capacity=8,
            slots_used=2,
            capacity_bytes=800,
            used_bytes=200,
            actors=2,
        ),
        c.TierView(
            tier=Tier.NVME,
            slots_capacity=None,
            slots_used=None,
            capacity_bytes=1,
            used_bytes=0,
            actors=0,
        ),
    ),
    "evict": c.EvictView(moved=("alice",), skipped=("bob",), nbytes=100),
    "models": (),
    "model": c.ModelView(
        name="demo",
        family="rwkv7",
        state_bytes=100,
        slots=8,
        vocab_size=256,
        fingerprints={"layout": "l"},
        capabilities={"rules": {"decay": 1}},
        created_us=TIME_US,
    ),
    "tokenize": (104, 105),
    "detokenize": "hi",
    "tokenizer_info": {"vocab_size": 256},
    "gc": c.GcView(
        dry_run=False,
        actors=1,
        versions=2,
        tokens=3,
        removed=(c.GcLine(reason="deleted", images=1, nbytes=4096),),
        kept=(c.GcLine(reason="rooted", images=1, nbytes=4096),),
        freed_images=1,
        freed_bytes=4096,
        waiting_images=0,
        waiting_bytes=0,
    ),
    "fsck": c.FsckView(
        ok=False,
        images=2,
        nbytes=8192,
        findings=(Finding(kind="image_damaged", detail="d", advice="a", actor="act_1"),),
    ),
    "backup": c.BackupView(target="/tmp/copy", images=2, nbytes=8192),
    "kept": None,
    "keep": None,
    "drain": c.DrainView(hibernated=2, images=1, failed=("bob",)),
}


@dataclass
class ScriptedVisor:
    """Every method answers from `answers`, or raises if an error lies there."""

    answers: dict[str, Any] = field(default_factory=lambda: dict(ANSWERS))
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    streams: list[TurnStream] = field(default_factory=list)
    script: Callable[[TurnStream], None] | None = None
    ready: bool = True
    known: dict[str, c.ActorView] = field(default_factory=dict)
    parts: list[Any] = field(default_factory=lambda: [ANSWERS["lineage"]] * 3)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name not in self.answers:
            raise AttributeError(name)

        async def method(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return method

    async def generate(self, command: c.Generate) -> TurnStream:
        self.calls.append(("generate", (command,), {}))
        refusal = self.answers.get("generate")
        if isinstance(refusal, Exception):
            raise refusal
        stream = TurnStream("turn_1")
        self.streams.append(stream)
        (self.script or say_hi)(stream)
        return stream

    async def walk(self, key: str, direction: str) -> AsyncIterator[c.LineageView]:
        self.calls.append(("walk", (key, direction), {}))
        for view in self.parts:
            if isinstance(view, Exception):
                raise view
            yield view

    def glance(self, key: str) -> c.ActorView | None:
        return self.known.get(key)

    def stats(self) -> dict[str, float]:
        return {"requests_running": 1, "slots_free": 6, "slots_used": 2, "actors_idle": 2}

    @property
    def turn(self) -> c.TurnView:
        """What a turn ends with."""
        return TURN

    @staticmethod
    def tokens(*texts: str) -> Iterable[c.TokenEvent]:
        """Events that say these texts."""
        return tokens(*texts)

    @property
    def last(self) -> Any:
        """The last command."""
        return self.calls[-1][1][0]


def tokens(*texts: str) -> Iterable[c.TokenEvent]:
    for index, text in enumerate(texts):
        yield c.TokenEvent(
            index=index,
            position=148 + index,
            token=ord(text[0]),
            text=text,
            logprobs=Logprobs(chosen=-0.5, top=((104, -0.5), (7, float("-inf")))),
        )


def say_hi(stream: TurnStream) -> None:
    for event in tokens("h", "i"):
        stream.put([event])
    stream.end(TURN)


@pytest.fixture
def visor() -> ScriptedVisor:
    return ScriptedVisor()


@pytest.fixture
def settings() -> ServerSettings:
    return ServerSettings(heartbeat_s=0.01, body_bytes=4096, import_bytes=8192, body_wait_s=0.2)


@pytest.fixture
def host(visor: ScriptedVisor, settings: ServerSettings) -> Host:
    host = Host(settings=settings, meter=PrometheusMeter(), version="0.0.0")
    host.attach(visor)  # type: ignore[arg-type]
    return host


@pytest.fixture
async def client(aiohttp_client: Any, host: Host) -> TestClient[Any, Any]:
    return await aiohttp_client(build_app(host))


@asynccontextmanager
async def _worker(host: Host) -> AsyncIterator[WorkerHost]:
    ours, its = socket.socketpair()
    port = Port(host, *await asyncio.open_connection(sock=ours))
    engine = RemoteVisor(*await asyncio.open_connection(sock=its))
    meter = RelayMeter()
    meter.attach(engine)
    worker = WorkerHost(
        settings=host.settings,
        meter=meter,  # type: ignore[arg-type]
        version=host.version,
        engine=engine,
    )
    host.changed = port.tell_state
    heard = asyncio.Event()

    def told(loaded: bool, draining: bool) -> None:
        worker.told(loaded, draining)
        heard.set()

    ends = [asyncio.create_task(port.run()), asyncio.create_task(engine.run(told))]
    await heard.wait()
    try:
        yield worker
    finally:
        engine.close()
        await asyncio.gather(*ends)


@pytest.fixture
def behind_a_socket() -> Callable[[Host], AbstractAsyncContextManager[WorkerHost]]:
    """What a worker process would serve of a host: the same, behind a socket."""
    return _worker


@asynccontextmanager
async def _listening(host: Host) -> AsyncIterator[int]:
    door = socket.create_server(("127.0.0.1", 0))
    door.setblocking(False)
    serving = await serve_app(host, [door])
    try:
        yield door.getsockname()[1]
    finally:
        await serving.cleanup()


@pytest.fixture
def listening() -> Callable[[Host], AbstractAsyncContextManager[int]]:
    """Serves a host as a server does; the port."""
    return _listening


@pytest.fixture(params=["here", "in a worker"])
async def port(request: Any, host: Host) -> Any:
    """The same routes in both forms of the server, by its port."""
    async with AsyncExitStack() as undo:
        served = host
        if request.param == "in a worker":
            served = await undo.enter_async_context(_worker(host))
        yield await undo.enter_async_context(_listening(served))
