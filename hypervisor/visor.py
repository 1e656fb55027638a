"""The hypervisor: takes commands, decides, has the effects done in order.

One method per command. Whatever changes something runs to its end once it has begun, also when the
caller goes away: a client that hangs up never leaves half an operation behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from statevisor.hypervisor import placement
from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.batcher import Batcher, FrameMaker, make_batcher
from statevisor.hypervisor.commands import (
    ActorView,
    Append,
    CancelTurn,
    Change,
    CreateActor,
    DeleteActor,
    DiffView,
    DrainView,
    Evict,
    EvictView,
    Fork,
    Generate,
    Hibernate,
    ImportImage,
    LineageView,
    ModelView,
    Mutate,
    Prompt,
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
from statevisor.hypervisor.errors import (
    ActorBusy,
    ActorNotFound,
    ContextLengthExceeded,
    Draining,
    GenerationConflict,
    IdempotencyMismatch,
    InvalidRequest,
    InvalidTransition,
    ModelNotFound,
    NoFreeSlot,
    StatevisorError,
    VersionNotFound,
)
from statevisor.hypervisor.gate import OutputGate
from statevisor.hypervisor.history import History, Paths
from statevisor.hypervisor.ids import Ids
from statevisor.hypervisor.lifecycle import Power
from statevisor.hypervisor.mailbox import Mailbox
from statevisor.hypervisor.ports import (
    ActorQuery,
    Catalog,
    Clock,
    Guard,
    Guest,
    Images,
    Meter,
    NewActor,
    Once,
    Provenance,
)
from statevisor.hypervisor.records import ActorRecord, TurnRecord, VersionRecord
from statevisor.hypervisor.replies import revive_actor, revive_turn, revive_version
from statevisor.hypervisor.residency import Residency
from statevisor.hypervisor.sampling import PenaltyCounts, SamplerSettings
from statevisor.hypervisor.stream import TurnStream
from statevisor.hypervisor.turn import Goal, Turn
from statevisor.hypervisor.turns import Turns, goal_from
from statevisor.hypervisor.vocab import MAX_SEED, FinishReason, Rng, Tier, check_name

T = TypeVar("T")


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
    ) -> None:
        self._catalog = catalog
        self._images = images
        self._config = config
        self._clock = clock
        self._meter = meter
        self._ids = Ids(clock)
        self._paths = Paths(catalog)
        self._actors: dict[str, Actor] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._draining = False
        self._running = False
        self._gate_task: asyncio.Task[None] | None = None
        self._batchers: dict[str, Batcher] = {}
        self._histories: dict[str, History] = {}
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
            self._histories[guest.name] = History(
                guest, batcher.residency, catalog, images, self._paths
            )

    # -- life of the process ---------------------------------------------------------------------
    @property
    def ready(self) -> bool:
        """Whether commands are taken."""
        return self._running and not self._draining

    async def start(self, owner: str) -> None:
        """Take the data folder, close what a crash left open, begin to step."""
        incarnation = await self._catalog.claim(owner)
        self._catalog.use_builds(
            {name: b.guest.fingerprints.build for name, b in self._batchers.items()}
        )
        gate = OutputGate(
            self._catalog, incarnation, self._config.durability, self._clock, self._meter
        )
        self._turns = Turns(self._catalog, gate, self._clock)
        await self._turns.recover({n: b.guest.tokenizer for n, b in self._batchers.items()})
        self._gate_task = asyncio.create_task(gate.run(), name="output-gate")
        for batcher in self._batchers.values():
            batcher.start()
        self._running = True

    async def drain(self, grace_s: float = 10.0) -> DrainView:
        """Take no new work, let turns end (then cancel them), write every resident state to nvme."""
        self._draining = True
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=grace_s)
        for actor in list(self._actors.values()):
            self._cancel(actor, None)
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        moved, failed = 0, []
        for actor in list(self._actors.values()):
            try:
                async with actor.mailbox.turn():
                    if self._tier(actor) is not Tier.NVME:
                        await self._batcher(actor.record).residency.hibernate(actor, Tier.NVME)
                        moved += 1
            except StatevisorError as error:
                failed.append(f"{actor.record.name}: {error.code}")
        return DrainView(hibernated=moved, images=moved - len(failed), failed=tuple(failed))

    async def close(self) -> None:
        """Stop stepping and close the store; what was not drained is recovered at the next start."""
        self._running = False
        for task in set(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for batcher in self._batchers.values():
            await batcher.stop()
        if self._gate_task is not None:
            self._gate_task.cancel()
            await asyncio.gather(self._gate_task, return_exceptions=True)
        await self._catalog.close()

    # -- actors ----------------------------------------------------------------------------------
    async def create(self, command: CreateActor) -> ActorView:
        """Create an actor, or begin one from a version; its prompt is absorbed before the answer."""
        if (told := await self._told(command.once)) is not None:
            return await self._view_of(revive_actor(told["actor"]))
        return await self._whole(self._create(command))

    async def _create(self, command: CreateActor) -> ActorView:
        source = None if command.source is None else await self._catalog.version(command.source)
        if source is None:
            batcher = self._batcher_named(command.model)
        else:
            parent = await self._catalog.actor(source.actor_id)
            if command.model not in (None, parent.model):
                raise InvalidRequest(f"{source.handle} belongs to the model {parent.model}")
            batcher = self._batcher_named(parent.model)
        first = source is None or source.position == 0
        tokens = self._encode(batcher, command.prompt, first=first)
        new = self._new_actor(command.name, batcher, command.seed, command.labels)
        if source is None:
            record = await self._catalog.create(new, tokens, once=command.once)
        else:
            path = await self._paths.of(source.segment)
            origin = await self._histories[batcher.guest.name].origin(
                source.actor_id, path, source.position, 0, source.handle
            )
            (record,) = await self._catalog.fork((new,), origin, prompt=tokens, once=command.once)
        actor = await self._admit(record)
        if tokens:
            try:
                async with actor.mailbox.turn():
                    await batcher.residency.resume(actor)
            except NoFreeSlot:
                pass  # the actor is committed; its prompt is absorbed when it is touched next
        return self._view(actor)

    async def actor(self, key: str) -> ActorView:
        """One actor by id or name."""
        return await self._view_of(await self._catalog.actor(key))

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
        """One page of actors, oldest first."""
        ids, exclude = self._filter(status, tier)
        query = ActorQuery(
            model=model, label=label, q=q, ids=ids, exclude=exclude, after=after, limit=limit
        )
        records, more = await self._catalog.actors(query)
        return tuple([await self._view_of(record) for record in records]), more

    def _filter(
        self, status: str | None, tier: str | None
    ) -> tuple[frozenset[str] | None, frozenset[str] | None]:
        """Status and tier live in memory: as sets of ids to keep or to leave out."""
        keep: frozenset[str] | None = None
        drop: frozenset[str] = frozenset()
        for value, lowest, of in (
            (status, Power.HIBERNATED.value, lambda a: a.power.value),
            (tier, Tier.NVME.value, lambda a: self._tier(a).value),
        ):
            if value is None:
                continue
            if value == lowest:
                drop |= {a.id for a in self._actors.values() if of(a) != value}
            else:
                same = frozenset(a.id for a in self._actors.values() if of(a) == value)
                keep = same if keep is None else keep & same
        return keep, drop or None

    async def update(self, command: UpdateActor) -> ActorView:
        """Change an actor's name, labels, pin or ttl."""
        if (told := await self._told(command.once)) is not None:
            return await self._view_of(revive_actor(told["actor"]))
        return await self._whole(self._update(command))

    async def _update(self, command: UpdateActor) -> ActorView:
        actor = await self._find(command.actor)
        if command.name is not None:
            check_name(command.name)
        async with actor.mailbox.turn():
            actor.record = await self._catalog.update(
                actor.id,
                guard=self._guard(actor, command),
                name=command.name,
                labels=command.labels,
                pinned=command.pinned,
                ttl_s=command.ttl_s,
            )
        return self._view(actor)

    async def delete(self, command: DeleteActor) -> None:
        """Cancel what runs, then tombstone the actor and free all it holds."""
        await self._whole(self._delete(command))

    async def _delete(self, command: DeleteActor) -> None:
        actor = await self._find(command.actor)
        self._check_generation(actor, command)
        self._cancel(actor, None)
        async with actor.mailbox.turn():
            if actor.power is Power.DELETED:
                raise ActorNotFound(f"there is no actor {command.actor!r}")
            guard = Guard(epoch=actor.record.epoch, once=command.once)
            await self._catalog.delete(actor.id, guard=guard)
            self._residency(actor).delete(actor)
            self._actors.pop(actor.id, None)

    # -- turns -----------------------------------------------------------------------------------
    async def append(self, command: Append) -> TurnView:
        """Absorb a prompt; nothing is sampled."""
        stream = await self._open(command, command.actor, command.prompt, None)
        return await stream.result()

    async def generate(self, command: Generate) -> TurnStream:
        """Open a turn; its tokens are read from the stream as they are committed."""
        return await self._open(command, command.actor, command.prompt, command)

    async def _open(
        self, change: Change, key: str, prompt: Prompt | None, generate: Generate | None
    ) -> TurnStream:
        self._accepting()
        earlier = await self._earlier(change.once)
        if isinstance(earlier, TurnStream):
            return earlier
        stream = TurnStream(self._ids.new("turn"))
        ask = Ask(change=change, key=key, prompt=prompt, generate=generate, earlier=earlier)
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._spawn(self._converse(stream, opened, ask))
        try:
            await asyncio.shield(opened)
        except asyncio.CancelledError:
            stream.cancel()
            raise
        return stream

    async def _earlier(self, once: Once | None) -> TurnRecord | TurnStream | None:
        """What an Idempotency-Key began before: a broken turn to take up, or a finished one.

        Raises: IdempotencyMismatch, ActorBusy.
        """
        operation = None if once is None else await self._catalog.operation(once.key)
        if operation is None or once is None:
            return None
        if operation.request != once.request or operation.turn_id is None:
            raise IdempotencyMismatch
        turn = await self._catalog.turn(operation.turn_id)
        if operation.result is not None:
            return await self._tell_again(turn, revive_turn(operation.result))
        if turn.finish is None:
            raise ActorBusy("the turn of this Idempotency-Key still runs")
        return turn

    async def _tell_again(self, turn: TurnRecord, view: TurnView) -> TurnStream:
        """The stream of a turn that has ended before."""
        stream = TurnStream(turn.id)
        record = await self._catalog.actor(turn.actor_id)
        again = Turn(
            id=turn.id,
            slot=0,
            goal=goal_from(turn.settings),
            gap=(),
            position=turn.start + turn.prompt_tokens,
            counts=PenaltyCounts(settings=SamplerSettings()),
            tokenizer=self._batcher(record).guest.tokenizer,
            push=lambda turn, event: None,
        )
        for event in again.replayed(view.token_ids):
            stream.put(event)
        stream.end(view)
        return stream

    async def _converse(self, stream: TurnStream, opened: asyncio.Future[None], ask: Ask) -> None:
        """One turn from request to result; every ending reaches the stream."""
        try:
            stream.end(await self._run(stream, opened, ask))
        except StatevisorError as error:
            stream.fail(error)
            if not opened.done():
                opened.set_exception(error)
        except BaseException as error:
            stream.fail(error)
            if not opened.done():
                opened.set_exception(error)
            raise
        if not opened.done():
            opened.set_result(None)

    async def _run(self, stream: TurnStream, opened: asyncio.Future[None], ask: Ask) -> TurnView:
        actor = await self._find(ask.key)
        batcher = self._batcher(actor.record)
        actor.turns[stream.turn_id] = stream
        try:
            if not await _enter(actor, stream):
                return self._unstarted(actor, stream)
            if ask.generate is not None and not ask.generate.commit:
                goal, prompt = self._goal(actor, batcher, ask)
                return await self._turns.throw_away(actor, batcher, stream, goal, prompt, opened)
            try:
                return await self._committed_turn(stream, opened, actor, batcher, ask)
            finally:
                actor.mailbox.leave()
                batcher.residency.wake()
        finally:
            actor.turns.pop(stream.turn_id, None)

    async def _committed_turn(
        self,
        stream: TurnStream,
        opened: asyncio.Future[None],
        actor: Actor,
        batcher: Batcher,
        ask: Ask,
    ) -> TurnView:
        """A turn that is journalled; the actor's mailbox is held."""
        guard = self._guard(actor, ask.change)
        earlier = ask.earlier
        if earlier is None:
            goal, prompt = self._goal(actor, batcher, ask)
        elif (actor.segment, actor.record.position) == (earlier.segment, earlier.position):
            goal, prompt = goal_from(earlier.settings), ()
        else:
            raise InvalidRequest(
                "a crash cut this turn short and the actor has moved on since",
                hint="Its committed tokens are in the transcript; use a new Idempotency-Key.",
            )
        began = self._clock.monotonic()
        view = await self._turns.run(
            actor, batcher, stream, goal, prompt, guard, opened, carried=earlier
        )
        self._count(view, ask, self._clock.monotonic() - began)
        await self._checkpoint(actor, batcher)
        return view

    def _count(self, view: TurnView, ask: Ask, seconds: float) -> None:
        self._meter.count("prompt_tokens_total", view.prompt_tokens)
        self._meter.count("generation_tokens_total", len(view.token_ids))
        if ask.generate is not None:
            self._meter.count("request_success_total", 1, finish_reason=view.finish.value)
            self._meter.observe("e2e_request_latency_seconds", seconds)

    async def _checkpoint(self, actor: Actor, batcher: Batcher) -> None:
        """Bound what a crash would have to replay."""
        if actor.power is not Power.IDLE:
            return
        if actor.record.position - actor.imaged >= self._config.checkpoint_tokens:
            await batcher.residency.checkpoint(actor)

    def _goal(self, actor: Actor, batcher: Batcher, ask: Ask) -> tuple[Goal, tuple[int, ...]]:
        """What the turn is to do, and its prompt as tokens. Raises: InvalidRequest."""
        position = actor.record.position
        tokens = self._encode(batcher, ask.prompt, first=position == 0)
        command = ask.generate
        if command is None:
            if not tokens:
                raise InvalidRequest("an append needs at least one token")
            return Goal(seed=actor.record.seed), tokens
        if not tokens and position == 0:
            raise InvalidRequest(
                "the actor is empty and this model has no token to begin with",
                hint="Give a prompt.",
            )
        if not 1 <= command.max_tokens <= self._config.max_tokens:
            raise InvalidRequest(f"max_tokens must be in 1..{self._config.max_tokens}")
        self._check_tokens(batcher, command.stop_token_ids)
        eos = frozenset() if command.ignore_eos else batcher.guest.tokenizer.eos
        goal = Goal(
            settings=command.settings,
            seed=actor.record.seed if command.seed is None else command.seed,
            max_tokens=command.max_tokens,
            stop=command.stop,
            stop_ids=frozenset(command.stop_token_ids) | eos,
        )
        return goal, tokens

    def _unstarted(self, actor: Actor, stream: TurnStream) -> TurnView:
        """A turn that was cancelled while it waited: nothing happened."""
        record = actor.record
        return TurnView(
            id=stream.turn_id,
            actor=record.name,
            text="",
            token_ids=(),
            finish=FinishReason.CANCELLED,
            position=record.position,
            durable_position=record.position,
            generation=record.generation,
            prompt_tokens=0,
        )

    async def cancel(self, command: CancelTurn) -> str:
        """End a turn at its last committed token; returns its id. Raises: InvalidTransition."""
        actor = await self._find(command.actor)
        turn = self._cancel(actor, command.turn)
        if turn is None:
            raise InvalidTransition(
                "no such turn waits or runs", hint="It may have ended; read the transcript."
            )
        return turn

    def _cancel(self, actor: Actor, turn: str | None) -> str | None:
        """Cancel one turn, or all that wait or run; returns the id of the first."""
        keys = [key for key in actor.turns if turn in (None, key)]
        for key in keys:
            actor.turns[key].cancel()
        return keys[0] if keys else None

    # -- history ---------------------------------------------------------------------------------
    async def snapshot(self, command: Snapshot) -> VersionRecord:
        """Name the last committed position; does not wait for a running turn."""
        if (told := await self._told(command.once)) is not None:
            return revive_version(told["version"])
        return await self._whole(self._snapshot(command))

    async def _snapshot(self, command: Snapshot) -> VersionRecord:
        began = self._clock.monotonic()
        actor = await self._find(command.actor)
        record = actor.committed()
        if command.tag is not None:
            check_name(command.tag)
        version = await self._catalog.snapshot(
            actor.id,
            record.segment,
            record.position,
            tag=command.tag,
            labels=command.labels,
            guard=self._guard(actor, command),
        )
        await self._refresh(actor)
        self._meter.observe("snapshot_seconds", self._clock.monotonic() - began)
        if command.wait:
            await self._image(actor, version)
            version = await self._catalog.version(f"{version.actor_id}@{version.seq}")
        return version

    async def _image(self, actor: Actor, version: VersionRecord) -> None:
        """Write a version's image: from the actor's slot if it rests just there, else by replay."""
        if actor.mailbox.try_enter():
            try:
                place = (actor.segment, actor.record.position)
                rests = actor.power is Power.IDLE and actor.absorbed == actor.rest and actor.rest
                if rests and place == (version.segment, version.position):
                    await self._residency(actor).checkpoint(actor)
            finally:
                actor.mailbox.leave()
        await self._history(actor.record).image(version)

    async def fork(self, command: Fork) -> tuple[ActorView, ...]:
        """Begin `count` actors at a place of this one's history; one small transaction."""
        if (told := await self._told(command.once)) is not None:
            return tuple([await self._view_of(revive_actor(a)) for a in told["actors"]])
        return await self._whole(self._fork(command))

    async def _fork(self, command: Fork) -> tuple[ActorView, ...]:
        began = self._clock.monotonic()
        actor = await self._find(command.actor)
        self._check_generation(actor, command)
        record = actor.committed()
        batcher = self._batcher(record)
        if not 1 <= command.count <= self._config.fork_count:
            raise InvalidRequest(f"count must be in 1..{self._config.fork_count}")
        names = command.names or (None,) * command.count
        if len(names) != command.count:
            raise InvalidRequest(f"{len(names)} names for {command.count} forks")
        seeds: tuple[int | None, ...] = command.seeds or (
            (record.seed if command.rng is Rng.INHERIT else None,) * command.count
        )
        if len(seeds) != command.count:
            raise InvalidRequest(f"{len(seeds)} seeds for {command.count} forks")
        origin = await self._histories[record.model].origin(
            actor.id,
            actor.path,
            record.position,
            record.base,
            record.position if command.at is None else command.at,
        )
        children = tuple(
            self._new_actor(name, batcher, seed, record.labels)
            for name, seed in zip(names, seeds, strict=True)
        )
        records = await self._catalog.fork(children, origin, once=command.once)
        self._meter.observe("fork_seconds", self._clock.monotonic() - began)
        return tuple([await self._view_of(child) for child in records])

    async def mutate(self, command: Mutate) -> VersionRecord:
        """Run a rule on the actor's state; the head moves to the result."""
        if (told := await self._told(command.once)) is not None:
            return revive_version(told["version"])
        return await self._whole(self._mutate(command))

    async def _mutate(self, command: Mutate) -> VersionRecord:
        began = self._clock.monotonic()
        actor = await self._find(command.actor)
        batcher, history = self._batcher(actor.record), self._history(actor.record)
        mutation = command.mutation
        version = batcher.guest.rules.get(mutation.rule)
        if version is None:
            known = ", ".join(sorted(batcher.guest.rules))
            raise InvalidRequest(f"there is no rule {mutation.rule!r}", hint=f"Rules: {known}.")
        others = await history.parents(mutation)
        for other in others:
            if (await self._catalog.actor(other.actor_id)).model != actor.record.model:
                raise InvalidRequest(f"{other.handle} belongs to another model")
        rows = [(await history.row(other))[0] for other in others]
        async with actor.mailbox.turn():
            self._check_generation(actor, command)
            await batcher.residency.resume(actor)
            own = await batcher.residency.row(actor)
            views = [memoryview(row) for row in (own, *rows)]
            row = await asyncio.to_thread(batcher.guest.mutate, mutation, views)
            if not batcher.guest.finite(memoryview(row)):
                raise InvalidRequest("the result of this rule is not finite")
            position, absorbed = actor.record.position, actor.absorbed
            pending = await batcher.residency.tokens(actor.segment, absorbed, position)
            meta = batcher.residency.meta(position, absorbed, pending)
            before = await asyncio.to_thread(self._images.digest, memoryview(own), meta)
            image = await batcher.residency.store(row, meta)
            why = Provenance(
                rule=mutation.rule,
                rule_version=version,
                params=mutation.params,
                select={
                    key: list(value)
                    for key in ("families", "layers", "heads")
                    if (value := getattr(mutation, key)) is not None
                },
                agent=command.agent,
                reason=command.reason,
                before=before,
                parents=tuple(other.handle for other in others),
                weights=tuple(mutation.params.get("weights", ())),
            )
            actor.record, made = await self._catalog.mutate(
                actor.id, image, why, guard=self._guard(actor, command)
            )
            actor.path = await self._paths.of(actor.segment)
            await batcher.residency.replace(actor, row)
        self._meter.observe("mutate_seconds", self._clock.monotonic() - began)
        return made

    async def rollback(self, command: Rollback) -> ActorView:
        """Move an actor back to a place of its history; the branch it leaves stays."""
        if (told := await self._told(command.once)) is not None:
            return await self._view_of(revive_actor(told["actor"]))
        return await self._whole(self._rollback(command))

    async def _rollback(self, command: Rollback) -> ActorView:
        actor = await self._find(command.actor)
        async with actor.mailbox.turn():
            record = actor.record
            origin = await self._history(record).origin(
                actor.id, actor.path, record.position, record.base, command.to
            )
            actor.record, _ = await self._catalog.rollback(
                actor.id,
                origin,
                seed=self._ids.seed() if command.rng is Rng.RESEED else None,
                guard=self._guard(actor, command),
            )
            residency = self._residency(actor)
            residency.cure(actor)
            residency.discard(actor)
            actor.path = await self._paths.of(actor.segment)
            actor.imaged = 0
        return self._view(actor)

    async def versions(
        self, key: str, after: int | None = None, limit: int = 50
    ) -> tuple[tuple[VersionRecord, ...], bool]:
        """One page of an actor's versions, oldest first."""
        record = await self._catalog.actor(key)
        return await self._catalog.versions(record.id, after, limit)

    async def transcript(
        self, key: str, start: int | None = None, stop: int | None = None
    ) -> TranscriptView:
        """Committed tokens of an actor, with their kinds and their text."""
        actor = await self._find(key)
        record = actor.committed()
        begin = record.base if start is None else start
        end = record.position if stop is None else stop
        if not record.base <= begin <= end <= record.position:
            raise InvalidRequest(
                f"{begin}..{end} is not in this transcript",
                hint=f"It covers {record.base}..{record.position}.",
            )
        runs = await self._catalog.transcript(record.segment, begin, end)
        tokens = tuple(token for run in runs for token in run.tokens)
        return TranscriptView(
            actor=record.name,
            start=begin,
            stop=end,
            token_ids=tokens,
            text=self._text(self._batcher(record), tokens),
            segments=tuple((run.position, len(run.tokens), run.kind) for run in runs),
        )

    async def lineage(
        self, key: str, direction: str = "ancestors", depth: int = 100
    ) -> LineageView:
        """The graph around an actor's head or a version."""
        handle = key
        if "@" not in key:
            record = await self._catalog.actor(key)
            handle = f"{record.id}@{record.head}"
        nodes, edges, cut = await self._catalog.lineage(handle, direction, depth, 10_000)
        return LineageView(
            nodes=nodes, edges=tuple((a, b, op.value) for a, b, op in edges), truncated=cut
        )

    async def version(self, handle: str) -> VersionRecord:
        """One version by handle or tag."""
        return await self._catalog.version(handle)

    async def diff(self, a: str, b: str) -> DiffView:
        """Compare two versions of one model."""
        left, right = await self._catalog.version(a), await self._catalog.version(b)
        record = await self._catalog.actor(left.actor_id)
        if (await self._catalog.actor(right.actor_id)).model != record.model:
            raise InvalidRequest("the two versions belong to different models")
        return await self._history(record).diff(left, right)

    async def export(self, handle: str) -> bytes:
        """A version's image as one safetensors file."""
        version = await self._catalog.version(handle)
        record = await self._catalog.actor(version.actor_id)
        return await self._whole(self._history(record).export(version))

    async def verify(self, handle: str) -> VerifyView:
        """Derive a version again and compare digests."""
        version = await self._catalog.version(handle)
        record = await self._catalog.actor(version.actor_id)
        return await self._whole(self._history(record).verify(version))

    async def import_image(self, command: ImportImage) -> VersionRecord:
        """Make an actor of an exported file. Raises: ImageCorrupt, IncompatibleImage."""
        if (told := await self._told(command.once)) is not None:
            return revive_version(told["version"])
        return await self._whole(self._import(command))

    async def _import(self, command: ImportImage) -> VersionRecord:
        self._accepting()
        batcher = self._batcher_named(command.model)
        guest = batcher.guest
        row = bytearray(guest.layout.row_bytes)
        meta = await asyncio.to_thread(
            self._images.decode, command.file, memoryview(row), guest.fingerprints
        )
        if not guest.finite(memoryview(row)):
            raise InvalidRequest("the state in this file is not finite")
        self._check_tokens(batcher, meta.pending)
        new = self._new_actor(command.name, batcher, None, {})
        image = await batcher.residency.store(row, meta)
        _, version = await self._catalog.import_image(new, image, meta, once=command.once)
        return version

    async def common_ancestor(self, a: str, b: str) -> VersionRecord:
        """The newest version both descend from. Raises: VersionNotFound."""
        found = await self._catalog.common_ancestor(a, b)
        if found is None:
            raise VersionNotFound(f"{a} and {b} have no common ancestor")
        return found

    async def blame(self, handle: str, layer: int) -> VersionRecord | None:
        """The mutation that last touched a layer on the way to a version."""
        return await self._catalog.blame(handle, layer)

    # -- tiers -----------------------------------------------------------------------------------
    async def hibernate(self, command: Hibernate) -> ActorView:
        """Move an actor down; when it answers the move is done."""
        return await self._whole(self._hibernate(command))

    async def _hibernate(self, command: Hibernate) -> ActorView:
        if command.tier is Tier.GPU:
            raise InvalidRequest("hibernate moves down: to host or nvme", hint="Use resume.")
        actor = await self._find(command.actor)
        async with actor.mailbox.turn():
            self._check_generation(actor, command)
            await self._residency(actor).hibernate(actor, command.tier)
        return self._view(actor)

    async def resume(self, command: Resume) -> ActorView:
        """Move an actor into a slot; when it answers the move is done."""
        return await self._whole(self._resume(command))

    async def _resume(self, command: Resume) -> ActorView:
        self._accepting()
        actor = await self._find(command.actor)
        async with actor.mailbox.turn():
            self._check_generation(actor, command)
            await self._residency(actor).resume(actor)
        return self._view(actor)

    async def tiers(self) -> tuple[TierView, ...]:
        """How full every tier is, over all guests."""
        batchers = self._batchers.values()
        actors = list(self._actors.values())
        total = await self._catalog.count_actors()
        gpu = sum(a.slot is not None for a in actors)
        host = sum(self._tier(a) is Tier.HOST for a in actors)
        slots = sum(b.residency.slots.capacity for b in batchers)
        used = sum(b.residency.slots.capacity - b.residency.slots.free for b in batchers)
        frames = [(b.guest.layout.row_bytes, b.residency.frames) for b in batchers]
        return (
            TierView(
                tier=Tier.GPU,
                slots_capacity=slots,
                slots_used=used,
                capacity_bytes=sum(
                    b.guest.layout.row_bytes * b.residency.slots.capacity for b in batchers
                ),
                used_bytes=sum(
                    b.guest.layout.row_bytes * (b.residency.slots.capacity - b.residency.slots.free)
                    for b in batchers
                ),
                actors=gpu,
            ),
            TierView(
                tier=Tier.HOST,
                slots_capacity=sum(f.capacity for _, f in frames),
                slots_used=sum(f.used for _, f in frames),
                capacity_bytes=sum(size * f.capacity for size, f in frames),
                used_bytes=sum(size * f.used for size, f in frames),
                actors=host,
            ),
            TierView(
                tier=Tier.NVME,
                slots_capacity=None,
                slots_used=None,
                capacity_bytes=self._images.capacity_bytes,
                used_bytes=self._images.used_bytes,
                actors=total - gpu - host,
            ),
        )

    async def evict(self, command: Evict) -> EvictView:
        """Move actors of one tier down by hand; running and pinned ones are skipped and listed."""
        order = [Tier.GPU, Tier.HOST, Tier.NVME]
        if order.index(command.target) <= order.index(command.source):
            raise InvalidRequest("evict moves down: gpu to host or nvme, host to nvme")
        return await self._whole(self._evict(command))

    async def _evict(self, command: Evict) -> EvictView:
        wanted: set[str] | None = None
        if command.actors is not None:
            wanted = {(await self._catalog.actor(key)).id for key in command.actors}
        moved: list[str] = []
        skipped: list[str] = []
        nbytes = 0
        for batcher in self._batchers.values():
            residency, size = batcher.residency, batcher.guest.layout.row_bytes
            there = [
                c for c in residency.candidates(command.source) if wanted is None or c.id in wanted
            ]
            keys = placement.select(
                there,
                now=self._clock.monotonic(),
                row_bytes=size,
                older_than_s=command.older_than_s,
                nbytes=command.nbytes,
                count=command.count,
            )
            skipped += [self._name(c.id) for c in there if c.busy or c.pinned]
            for key in keys:
                name = self._name(key)
                if command.dry_run or await self._evict_one(residency, key, command.target):
                    moved.append(name)
                    nbytes += size
                else:
                    skipped.append(name)
        return EvictView(moved=tuple(moved), skipped=tuple(skipped), nbytes=nbytes)

    async def _evict_one(self, residency: Residency, key: str, tier: Tier) -> bool:
        actor = residency.actors.get(key)
        if actor is None or not actor.mailbox.try_enter():
            return False
        try:
            await residency.hibernate(actor, tier)
        finally:
            actor.mailbox.leave()
        return True

    # -- models ----------------------------------------------------------------------------------
    async def models(self) -> tuple[ModelView, ...]:
        """Every loaded guest."""
        return tuple(_model_view(batcher) for batcher in self._batchers.values())

    async def model(self, name: str) -> ModelView:
        """One loaded guest. Raises: ModelNotFound."""
        return _model_view(self._batcher_named(name))

    async def tokenize(
        self, model: str | None, text: str, add_bos: bool = False
    ) -> tuple[int, ...]:
        """Ids of a text."""
        tokenizer = self._batcher_named(model).guest.tokenizer
        bos = (tokenizer.bos,) if add_bos and tokenizer.bos is not None else ()
        return bos + tokenizer.encode(text)

    async def detokenize(self, model: str | None, ids: Sequence[int]) -> str:
        """Text of ids."""
        batcher = self._batcher_named(model)
        self._check_tokens(batcher, ids)
        return self._text(batcher, ids)

    async def tokenizer_info(self, model: str | None) -> Mapping[str, Any]:
        """What a client must know of the tokenizer."""
        guest = self._batcher_named(model).guest
        return {
            "model": guest.name,
            "vocab_size": guest.vocab_size,
            "bos_token_id": guest.tokenizer.bos,
            "eos_token_ids": sorted(guest.tokenizer.eos),
        }

    def stats(self) -> Mapping[str, float]:
        """Gauges of the moment."""
        batchers = self._batchers.values()
        waiting = sum(a.mailbox.depth for a in self._actors.values())
        running = sum(a.turn is not None for a in self._actors.values())
        capacity = sum(b.residency.slots.capacity for b in batchers)
        free = sum(b.residency.slots.free for b in batchers)
        powers = {power.value: 0 for power in Power if power is not Power.DELETED}
        for actor in self._actors.values():
            if actor.power.value in powers:
                powers[actor.power.value] += 1
        return {
            "requests_running": running,
            "requests_waiting": waiting,
            "mailbox_depth": waiting,
            "slots_free": free,
            "slots_used": capacity - free,
            **{f"actors_{power}": float(count) for power, count in powers.items()},
        }

    # -- finding ---------------------------------------------------------------------------------
    async def _find(self, key: str) -> Actor:
        """The actor in memory; its record is as committed. Raises: ActorNotFound."""
        actor = self._actors.get(key)
        if actor is not None and actor.power is not Power.DELETED:
            return actor
        return await self._admit(await self._catalog.actor(key))

    async def _admit(self, record: ActorRecord) -> Actor:
        known = self._actors.get(record.id)
        if known is not None:
            return known
        path = await self._paths.of(record.segment)
        self._forget()
        actor = Actor(record, path, Mailbox(self._config.mailbox), self._clock.monotonic())
        return self._actors.setdefault(record.id, actor)

    def _forget(self) -> None:
        """Keep the table small: an actor at rest on nvme is nothing but its row in the catalog."""
        if len(self._actors) < self._config.actors_in_memory:
            return
        for actor in [a for a in self._actors.values() if self._at_rest(a)]:
            del self._actors[actor.id]

    def _at_rest(self, actor: Actor) -> bool:
        quiet = not actor.mailbox.held and not actor.turns
        return quiet and self._tier(actor) is Tier.NVME

    async def _refresh(self, actor: Actor) -> None:
        """Take over what a change beside the mailbox has committed."""
        record = await self._catalog.actor(actor.id)
        if record.generation > actor.record.generation:
            actor.record = record

    async def _view_of(self, record: ActorRecord) -> ActorView:
        actor = self._actors.get(record.id)
        if actor is not None:
            return self._view(actor)
        status = Power.QUARANTINED if record.quarantine else Power.HIBERNATED
        return ActorView(
            record=record,
            status=status.value,
            tier=Tier.NVME,
            durable_position=record.position,
        )

    def _view(self, actor: Actor) -> ActorView:
        record = actor.committed()
        return ActorView(
            record=record,
            status=actor.power.value,
            tier=self._tier(actor),
            durable_position=record.position,
        )

    def _name(self, actor_id: str) -> str:
        actor = self._actors.get(actor_id)
        return actor.record.name if actor else actor_id

    def _batcher(self, record: ActorRecord) -> Batcher:
        return self._batcher_named(record.model)

    def _batcher_named(self, model: str | None) -> Batcher:
        if model is None:
            return next(iter(self._batchers.values()))
        try:
            return self._batchers[model]
        except KeyError:
            raise ModelNotFound(f"no model {model!r} is loaded") from None

    def _history(self, record: ActorRecord) -> History:
        self._batcher(record)
        return self._histories[record.model]

    def _residency(self, actor: Actor) -> Residency:
        return self._batcher(actor.record).residency

    def _tier(self, actor: Actor) -> Tier:
        batcher = self._batchers.get(actor.record.model)
        return Tier.NVME if batcher is None else batcher.residency.tier(actor)

    # -- checking --------------------------------------------------------------------------------
    def _accepting(self) -> None:
        if self._draining:
            raise Draining

    def _guard(self, actor: Actor, change: Change) -> Guard:
        return Guard(epoch=actor.record.epoch, generation=change.if_generation, once=change.once)

    def _check_generation(self, actor: Actor, change: Change) -> None:
        """If-Match of an operation that has no transaction of its own to check it in."""
        if change.if_generation not in (None, actor.record.generation):
            raise GenerationConflict(
                f"{actor.record.name} is at generation {actor.record.generation}, "
                f"not {change.if_generation}"
            )

    def _check_tokens(self, batcher: Batcher, tokens: Sequence[int]) -> None:
        size = batcher.guest.vocab_size
        for token in tokens:
            if not 0 <= token < size:
                raise InvalidRequest(f"token id {token} is not in the vocabulary of {size}")

    def _encode(self, batcher: Batcher, prompt: Prompt | None, *, first: bool) -> tuple[int, ...]:
        """A prompt as tokens; the first of an actor is preceded by the guest's BOS."""
        tokenizer = batcher.guest.tokenizer
        if isinstance(prompt, str):
            tokens = tokenizer.encode(prompt)
        else:
            tokens = tuple(prompt or ())
            self._check_tokens(batcher, tokens)
        if first and tokenizer.bos is not None and tokens[:1] != (tokenizer.bos,):
            tokens = (tokenizer.bos, *tokens)
        if len(tokens) > self._config.prompt_tokens:
            raise ContextLengthExceeded(
                f"{len(tokens)} tokens; one prompt may have {self._config.prompt_tokens}"
            )
        return tokens

    def _text(self, batcher: Batcher, tokens: Sequence[int]) -> str:
        return b"".join(map(batcher.guest.tokenizer.token_bytes, tokens)).decode(errors="replace")

    def _new_actor(
        self, name: str | None, batcher: Batcher, seed: int | None, labels: Mapping[str, str]
    ) -> NewActor:
        key = self._ids.new("act")
        if seed is not None and not 0 <= seed < MAX_SEED:
            raise InvalidRequest("a seed must be in 0..2^53-1")
        return NewActor(
            id=key,
            name=check_name(name) if name is not None else f"actor-{key[-10:]}",
            model=batcher.guest.name,
            seed=self._ids.seed() if seed is None else seed,
            labels=labels,
        )

    async def _told(self, once: Once | None) -> Mapping[str, Any] | None:
        """What this Idempotency-Key gave before. Raises: IdempotencyMismatch, ActorBusy, Draining."""
        self._accepting()
        operation = None if once is None else await self._catalog.operation(once.key)
        if operation is None or once is None:
            return None
        if operation.request != once.request:
            raise IdempotencyMismatch
        return operation.result

    # -- running ---------------------------------------------------------------------------------
    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work to its end, also when the caller is cancelled."""
        return await asyncio.shield(self._spawn(work))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One append or generate on its way."""

    change: Change
    key: str
    prompt: Prompt | None
    generate: Generate | None
    earlier: TurnRecord | None  #: the broken turn of the same Idempotency-Key


async def _enter(actor: Actor, stream: TurnStream) -> bool:
    """Wait for the actor's mailbox; False if the turn was cancelled while it waited."""
    waiting = asyncio.ensure_future(actor.mailbox.enter())
    stream.on_cancel(waiting.cancel)
    try:
        await waiting
    except asyncio.CancelledError:
        if waiting.cancelled() and stream.cancelled:
            return False
        raise
    finally:
        stream.on_cancel(lambda: None)
    return True


def _model_view(batcher: Batcher) -> ModelView:
    guest = batcher.guest
    prints = guest.fingerprints
    return ModelView(
        name=guest.name,
        family=guest.family,
        state_bytes=guest.layout.row_bytes,
        slots=guest.slots,
        vocab_size=guest.vocab_size,
        fingerprints={"layout": prints.layout, "weights": prints.weights, "build": prints.build},
        capabilities={
            "rules": dict(guest.rules),
            "families": [f.name for f in guest.layout.families],
        },
        created_us=batcher.created_us,
    )
