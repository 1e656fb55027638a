"""The hypervisor: one method per command.

It puts the parts together and hands each command to the part that carries it out. Whatever changes
something runs to its end once it has begun, also when the caller goes away: a client that hangs up
never leaves half an operation behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from statevisor.hypervisor.batcher import Batcher, FrameMaker, make_batcher
from statevisor.hypervisor.branches import Branches
from statevisor.hypervisor.broken_turns import BrokenTurns
from statevisor.hypervisor.catalog_port import Catalog, Once, VersionQuery
from statevisor.hypervisor.commands import (
    MAX_NODES,
    ActorView,
    Append,
    Backup,
    BackupView,
    CancelTurn,
    CostView,
    CreateActor,
    DeleteActor,
    DiffView,
    DrainView,
    Evict,
    EvictView,
    Fork,
    Fsck,
    FsckView,
    Gc,
    GcView,
    Generate,
    Hibernate,
    ImportImage,
    LineageView,
    ModelView,
    Mutate,
    Resume,
    Rollback,
    Snapshot,
    TierView,
    TranscriptView,
    TurnView,
    UpdateActor,
    VerifyView,
)
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.conversations import Conversations
from statevisor.hypervisor.costs import Costs
from statevisor.hypervisor.gate import OutputGate
from statevisor.hypervisor.history import History, Paths
from statevisor.hypervisor.housekeeping import Housekeeping
from statevisor.hypervisor.idle import IdleTimer
from statevisor.hypervisor.ids import Ids
from statevisor.hypervisor.image_ports import Archive, Images
from statevisor.hypervisor.library import Library
from statevisor.hypervisor.ports import Clock, Guest, Meter
from statevisor.hypervisor.recipes import RecipeView
from statevisor.hypervisor.records import VersionRecord
from statevisor.hypervisor.recovery import Recovery
from statevisor.hypervisor.registry import Registry
from statevisor.hypervisor.roster import Roster
from statevisor.hypervisor.stream import TurnStream
from statevisor.hypervisor.tasks import Tasks
from statevisor.hypervisor.tiering import Tiering
from statevisor.hypervisor.turns import Turns


class Visor:
    """Actors of all guests of one data folder."""

    def __init__(
        self,
        *,
        guests: Sequence[Guest],
        catalog: Catalog,
        images: Images,
        frames: FrameMaker,
        config: VisorConfig,
        clock: Clock,
        meter: Meter,
        archive: Archive | None = None,
    ) -> None:
        self._catalog = catalog
        self._running = False
        self._gate = OutputGate(catalog, config.durability, clock, meter)
        self._background: list[asyncio.Task[None]] = []
        self._tasks = Tasks()
        paths, ids = Paths(catalog), Ids(clock)
        self._batchers: dict[str, Batcher] = {}
        histories: dict[str, History] = {}
        for guest in guests:
            batcher = make_batcher(
                guest,
                catalog=catalog,
                images=images,
                frames=frames,
                config=config,
                clock=clock,
                meter=meter,
            )
            self._batchers[guest.name] = batcher
            histories[guest.name] = History(guest, batcher.residency, catalog, images, paths)
        self._turns = Turns(catalog, self._gate, self._tasks, clock)
        roster = self._roster = Roster(
            batchers=self._batchers,
            histories=histories,
            catalog=catalog,
            paths=paths,
            ids=ids,
            config=config,
            clock=clock,
        )
        self._conversations = Conversations(
            roster=roster,
            turns=self._turns,
            tasks=self._tasks,
            catalog=catalog,
            ids=ids,
            config=config,
            clock=clock,
            meter=meter,
        )
        self._branches = Branches(
            roster=roster,
            tasks=self._tasks,
            catalog=catalog,
            images=images,
            paths=paths,
            ids=ids,
            config=config,
            clock=clock,
            meter=meter,
        )
        self._costs = Costs(roster=roster, catalog=catalog, paths=paths)
        self._registry = Registry(
            roster=roster,
            conversations=self._conversations,
            tasks=self._tasks,
            catalog=catalog,
            paths=paths,
        )
        self._tiering = Tiering(
            roster=roster, tasks=self._tasks, catalog=catalog, images=images, clock=clock
        )
        self._housekeeping = Housekeeping(
            roster=roster,
            tasks=self._tasks,
            catalog=catalog,
            images=images,
            archive=archive,
            clock=clock,
        )
        self._library = Library(roster=roster, tasks=self._tasks, catalog=catalog)
        self._idle = IdleTimer(roster, clock, meter)
        self._recovery = Recovery(
            roster=roster,
            tasks=self._tasks,
            catalog=catalog,
            config=config,
            clock=clock,
            meter=meter,
        )

    # -- life of the process ---------------------------------------------------------------------
    @property
    def ready(self) -> bool:
        """Whether commands are taken."""
        return self._running and not self._roster.draining and not self._dead()

    def _dead(self) -> list[asyncio.Task[None]]:
        return [task for task in self._background if task.done()]

    async def failed(self) -> BaseException:
        """Wait until a part that must always run has ended; returns why.

        The process is of no use then and should stop: the journal has all that was told.
        """
        await asyncio.wait(self._background, return_when=asyncio.FIRST_COMPLETED)
        error = self._dead()[0].exception()
        return error or RuntimeError("a part of the hypervisor ended")

    async def start(self, incarnation: int) -> None:
        """Close what a crash left open and begin to step, as the claimed owner of the folder."""
        self._gate.incarnation = incarnation
        self._catalog.use_builds(
            {name: b.guest.fingerprints.build for name, b in self._batchers.items()}
        )
        broken = BrokenTurns(self._catalog)
        await broken.close({n: b.guest.tokenizer for n, b in self._batchers.items()})
        self._background = [
            asyncio.create_task(self._gate.run(), name="output-gate"),
            asyncio.create_task(self._idle.run(), name="idle-timer"),
        ]
        for batcher in self._batchers.values():
            self._background += batcher.start()
        self._running = True
        self._recovery.begin()

    async def drain(self, grace_s: float = 10.0) -> DrainView:
        """Take no new work, let turns end (then cancel them), leave no state to be replayed.

        When it returns every actor has an image where it stands, so that another build can load it.
        """
        self._roster.draining = True
        self._recovery.stop()
        await self._tasks.wait(grace_s)
        for actor in list(self._roster.actors.values()):
            self._conversations.cancel_turns(actor, None)
        await self._tasks.wait()
        return await self._tiering.lay_down()

    async def close(self) -> None:
        """Stop stepping and close the store; what was not drained is recovered at start."""
        self._running = False
        await self._tasks.cancel()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for batcher in self._batchers.values():
            await batcher.stop()
        await self._tasks.cancel()  # what the last steps have begun meanwhile
        await self._catalog.close()

    # -- actors ----------------------------------------------------------------------------------
    async def create(self, command: CreateActor) -> ActorView:
        """Create an actor, or begin one from a version; the prompt is absorbed first."""
        return await self._registry.create(command)

    async def actor(self, key: str) -> ActorView:
        """One actor by id or name."""
        return await self._roster.look(key)

    def glance(self, key: str) -> ActorView | None:
        """The same, if it is known without the catalog; else None."""
        return self._roster.glance(key)

    async def actors(
        self,
        *,
        status: str | None = None,
        model: str | None = None,
        tier: str | None = None,
        label: tuple[str, str | None] | None = None,
        q: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> tuple[tuple[ActorView, ...], bool]:
        """One page of actors, oldest first, and whether more follow."""
        return await self._registry.actors(
            status=status, model=model, tier=tier, label=label, q=q, limit=limit, after=after
        )

    async def update(self, command: UpdateActor) -> ActorView:
        """Change an actor's name, labels, pin or ttl."""
        return await self._registry.update(command)

    async def delete(self, command: DeleteActor) -> None:
        """Cancel what runs, then tombstone the actor and free all it holds."""
        await self._registry.delete(command)

    # -- turns -----------------------------------------------------------------------------------
    async def append(self, command: Append) -> TurnView:
        """Absorb a prompt; nothing is sampled."""
        return await self._conversations.append(command)

    async def generate(self, command: Generate) -> TurnStream:
        """Open a turn; its tokens are read from the stream as they are committed."""
        return await self._conversations.generate(command)

    async def cancel(self, command: CancelTurn) -> str:
        """End a turn at its last committed token; returns its id. Raises: InvalidTransition."""
        return await self._conversations.cancel(command)

    # -- branches --------------------------------------------------------------------------------
    async def snapshot(self, command: Snapshot) -> VersionRecord:
        """Name the last committed position; does not wait for a running turn."""
        return await self._branches.snapshot(command)

    async def fork(self, command: Fork) -> tuple[ActorView, ...]:
        """Begin `count` actors at a place of this one's history; one small transaction."""
        return await self._branches.fork(command)

    async def mutate(self, command: Mutate) -> VersionRecord:
        """Run a rule on the actor's state; the head moves to the result."""
        return await self._branches.mutate(command)

    async def rollback(self, command: Rollback) -> ActorView:
        """Move an actor back to a place of its history; the branch it leaves stays."""
        return await self._branches.rollback(command)

    async def cost(self, command: Fork | Rollback) -> CostView:
        """What the first touch behind a fork or a rollback would pay; changes nothing."""
        if isinstance(command, Fork):
            return await self._costs.fork(command)
        return await self._costs.rollback(command)

    async def import_image(self, command: ImportImage) -> VersionRecord:
        """Make an actor of an exported file. Raises: ImageCorrupt, IncompatibleImage."""
        return await self._branches.import_image(command)

    # -- reading ---------------------------------------------------------------------------------
    async def versions(
        self, key: str, after: int | None = None, limit: int = 50
    ) -> tuple[tuple[VersionRecord, ...], bool]:
        """One page of an actor's versions, oldest first, and whether more follow."""
        return await self._library.versions(key, after, limit)

    async def search(self, query: VersionQuery) -> tuple[tuple[VersionRecord, ...], bool]:
        """One page of all versions under filters, oldest first, and whether more follow."""
        return await self._library.search(query)

    async def head(self, key: str, at_us: int | None = None) -> VersionRecord:
        """The version an actor stands at, or stood at then. Raises: VersionNotFound."""
        return await self._library.head(key, at_us)

    async def transcript(
        self, key: str, start: int | None = None, stop: int | None = None
    ) -> TranscriptView:
        """Committed tokens of an actor, with their kinds and their text."""
        return await self._library.transcript(key, start, stop)

    async def lineage(
        self, key: str, direction: str = "ancestors", depth: int = 100, limit: int = MAX_NODES
    ) -> LineageView:
        """The graph around an actor's head or a version, the nearest `limit` versions of it."""
        return await self._library.lineage(key, direction, depth, limit)

    def walk(self, key: str, direction: str) -> AsyncIterator[LineageView]:
        """The whole graph around an actor's head or a version, in parts."""
        return self._library.walk(key, direction)

    async def version(self, handle: str, *, wait: bool = False) -> VersionRecord:
        """One version by handle or tag; `wait` has its image written first."""
        return await self._library.version(handle, wait=wait)

    async def diff(self, a: str, b: str) -> DiffView:
        """Compare two versions of one model."""
        return await self._library.diff(a, b)

    async def export(self, handle: str) -> bytes:
        """A version's image as one safetensors file."""
        return await self._library.export(handle)

    async def verify(self, handle: str) -> VerifyView:
        """Derive a version again and compare digests."""
        return await self._library.verify(handle)

    async def recipe(self, handle: str, *, whole: bool = False) -> RecipeView:
        """What makes a version again: from the last image before it, or from the beginning."""
        return await self._library.recipe(handle, whole=whole)

    async def is_ancestor(self, a: str, b: str) -> bool:
        """Whether version b comes from version a, or is it."""
        return await self._library.is_ancestor(a, b)

    async def common_ancestor(self, a: str, b: str) -> VersionRecord:
        """The newest version both descend from. Raises: VersionNotFound."""
        return await self._library.common_ancestor(a, b)

    async def blame(self, handle: str, layer: int) -> VersionRecord | None:
        """The mutation that last touched a layer on the way to a version."""
        return await self._library.blame(handle, layer)

    # -- tiers -----------------------------------------------------------------------------------
    async def hibernate(self, command: Hibernate) -> ActorView:
        """Move an actor down; when it answers the move is done."""
        return await self._tiering.hibernate(command)

    async def resume(self, command: Resume) -> ActorView:
        """Move an actor into a slot; when it answers the move is done."""
        return await self._tiering.resume(command)

    async def evict(self, command: Evict) -> EvictView:
        """Move actors of one tier down; running and pinned ones are skipped and listed."""
        return await self._tiering.evict(command)

    async def tiers(self) -> tuple[TierView, ...]:
        """How full every tier is, over all guests."""
        return await self._tiering.tiers()

    def stats(self) -> Mapping[str, float]:
        """Gauges of the moment."""
        return self._tiering.stats()

    # -- housekeeping ----------------------------------------------------------------------------
    async def gc(self, command: Gc) -> GcView:
        """Take out what nothing needs any more."""
        return await self._housekeeping.gc(command)

    async def fsck(self, command: Fsck) -> FsckView:
        """Read and compare the whole data folder; repair what can be made again."""
        return await self._housekeeping.fsck(command)

    async def backup(self, command: Backup) -> BackupView:
        """Copy the whole data folder while everything goes on."""
        return await self._housekeeping.backup(command)

    # -- keys ------------------------------------------------------------------------------------
    async def kept(self, once: Once) -> Mapping[str, Any] | None:
        """What is kept with an Idempotency-Key. Raises: IdempotencyMismatch."""
        return await self._roster.kept(once)

    async def keep(self, once: Once, result: Mapping[str, Any]) -> None:
        """Keep the answer of an operation that has no transaction of its own.

        Raises: IdempotencyMismatch.
        """
        await self._tasks.whole(self._catalog.remember(once, result))

    # -- models ----------------------------------------------------------------------------------
    async def models(self) -> tuple[ModelView, ...]:
        """Every loaded guest."""
        return self._library.models()

    async def model(self, name: str) -> ModelView:
        """One loaded guest. Raises: ModelNotFound."""
        return self._library.model(name)

    async def tokenize(
        self, model: str | None, text: str, add_bos: bool = False
    ) -> tuple[int, ...]:
        """Ids of a text."""
        return self._library.tokenize(model, text, add_bos)

    async def detokenize(self, model: str | None, ids: Sequence[int]) -> str:
        """Text of ids. Raises: InvalidRequest."""
        return self._library.detokenize(model, ids)

    async def tokenizer_info(self, model: str | None) -> Mapping[str, Any]:
        """What a client must know of the tokenizer."""
        return self._library.tokenizer_info(model)
