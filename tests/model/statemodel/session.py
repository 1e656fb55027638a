"""One operation at a time on a world and on its model; both must agree on what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from statemodel.book import Actor, Book, Version
from statemodel.checks import check_world
from statemodel.oracle import ROW_BYTES, Answer, Ask, Event, Oracle
from statemodel.world import World

from statevisor.guests.toy import BOS, EOS, POISON
from statevisor.hypervisor.catalog_port import Once
from statevisor.hypervisor.commands import (
    Append,
    CostView,
    CreateActor,
    DeleteActor,
    Evict,
    Fork,
    Gc,
    Generate,
    Hibernate,
    ImportImage,
    Mutate,
    Resume,
    Rollback,
    Snapshot,
    TurnView,
    UpdateActor,
)
from statevisor.hypervisor.errors import (
    ActorExists,
    ActorNotFound,
    ActorQuarantined,
    GenerationConflict,
    InvalidRequest,
    NoFreeSlot,
    StatevisorError,
    VersionNotFound,
)
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.vocab import FinishReason, Rng, Tier

_LIMIT_S = 15.0  #: an operation that takes longer hangs


class Refused(Exception):
    """The model says that an operation must fail with an error of this class."""

    def __init__(self, error: type[StatevisorError]) -> None:
        super().__init__(error.__name__)
        self.error = error


@dataclass(slots=True)
class Keyed:
    """A command with an Idempotency-Key that was sent before."""

    again: Callable[[], Awaitable[Any]]
    told: Any  #: what a repetition must answer; None if the first attempt broke off
    actor: Actor | None = None
    answer: Answer | None = None  #: of a turn that broke off
    begun: Event | None = None  #: the history behind the prompt of such a turn
    stood: Event | None = None  #: where the actor stood once it had broken off


class Session:
    """A world, its model, and one method per operation."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.book = Book(Oracle())
        self.keyed: list[Keyed] = []
        self.files: list[tuple[bytes, Event]] = []
        self.flipped: set[tuple[str, int]] = set()  #: actors and which bytes of their frames
        self.torn = False  #: whether an operation was cut off, so that garbage may be left
        self._keys = 0

    @property
    def visor(self) -> Any:
        return self.world.visor

    @property
    def damaged(self) -> set[str]:
        """Actors whose frames are not what they were."""
        return {actor_id for actor_id, _ in self.flipped}

    # -- what an operation may expect ------------------------------------------------------------
    def once(self, wanted: bool) -> Once | None:
        if not wanted:
            return None
        self._keys += 1
        return Once(key=f"key-{self._keys}", request="request")

    def _resident(self, actor: Actor) -> bool:
        held = self.world.residency.actors.get(actor.id)
        return held is not None and held.slot is not None

    def _room(self, actor: Actor | None = None) -> int:
        """How many slots an operation can get beside the one its actor holds."""
        fixed = [one for one in self.book.living if one.pinned and self._resident(one)]
        held = actor is not None and self._resident(actor) and actor not in fixed
        return self.world.slots - len(fixed) - held

    def _frames(self) -> int:
        """How many frames an actor can get: no pinned one gives up its own."""
        frames = self.world.residency.frames
        fixed = [one for one in self.book.living if one.pinned and frames.get(one.id) is not None]
        return self.world.frames - len(fixed)

    def _touch(self, actor: Actor) -> None:
        """What a resume comes to. Raises: Refused."""
        if actor.quarantined:
            raise Refused(ActorQuarantined)
        if not self._resident(actor) and not self._room():
            raise Refused(NoFreeSlot)
        self._poisoned(actor)

    def _poisoned(self, actor: Actor) -> None:
        if actor.event.poisoned:
            self._quarantine(actor)
            raise Refused(ActorQuarantined)

    def _quarantine(self, actor: Actor) -> None:
        actor.quarantined = True
        actor.generation += 1

    def _generation(self, actor: Actor, wanted: int | None) -> None:
        if wanted not in (None, actor.generation):
            raise Refused(GenerationConflict)

    async def _run(self, call: Callable[[], Awaitable[Any]], expected: Callable[[], Any]) -> Any:
        """Do an operation for real; `expected` does it in the model or raises Refused.

        Returns what the hypervisor answered, or the error it must have answered with.
        """
        refused: Refused | None = None
        planned: Any = None
        try:
            planned = expected()
        except Refused as error:
            refused = error
        try:
            async with asyncio.timeout(_LIMIT_S):
                answer = await call()
        except StatevisorError as error:
            if refused is None:
                raise AssertionError(f"refused: {type(error).__name__}: {error}") from error
            if type(error) is not refused.error:
                raise AssertionError(f"{error!r} is not {refused.error.__name__}") from error
            return error
        assert refused is None, f"accepted, but must be refused: {refused}"
        return (planned, answer)

    async def settle(self) -> None:
        """Wait for the end of everything and compare all there is with the model."""
        await self.world.quiet()
        frames = self.world.residency.frames
        self.flipped = {one for one in self.flipped if frames.get(one[0]) is not None}
        await check_world(self)

    # -- life of the process ---------------------------------------------------------------------
    async def crash(self) -> None:
        """The process ends between two operations."""
        await self.world.stop()
        await self.world.start()

    async def drain(self) -> None:
        view = await self.visor.drain()
        failed = {text.split(":")[0] for text in view.failed}
        for actor in self.book.living:
            if actor.event.poisoned and not actor.quarantined:
                self._quarantine(actor)
                failed.discard(actor.name)
        assert not failed, f"drain failed for {failed}"
        for actor in self.book.living:
            record = await self.world.catalog.actor(actor.id)
            if record.position > 1 and not actor.quarantined:
                image = await self.world.catalog.image_at(record.segment, record.position)
                assert image is not None, f"{actor.name} has no image after a drain"
                row = bytearray(ROW_BYTES)
                meta = await self.world.images.get(image, memoryview(row))
                assert meta.absorbed == record.position - 1, f"{actor.name}: a gap after a drain"
        await self.crash()

    async def gc(self, grace_s: float, dry_run: bool) -> None:
        """Take out what nothing needs; what is left must be whole."""
        images = self.world.images
        before = images.used_bytes
        view = await self.visor.gc(Gc(grace_s=grace_s, dry_run=dry_run))
        gone = [
            one for one in self.book.actors.values() if one.deleted and not await self._kept(one)
        ]
        if dry_run:
            assert (gone, images.used_bytes) == ([], before), "a dry run took something"
            return
        assert len(gone) == view.actors, "an actor is gone, or not, that was counted otherwise"
        for actor in gone:
            self.book.forget(actor)
        for actor in gone:
            assert not self.book.needed(actor), f"{actor.name} is gone, and others need it"
        left = [one for one in self.book.actors.values() if one.deleted]
        assert all(self.book.needed(one) for one in left), "an actor that nothing needs is kept"
        self.keyed = [one for one in self.keyed if one.actor not in gone]
        # an image that waits to be freed may be written anew meanwhile: the old bytes are garbage
        self.torn = view.waiting_images > 0 or (self.torn and grace_s > 0)
        if not grace_s:
            named = sum(one.length for one in await self.world.catalog.live_images())
            assert images.used_bytes == named, "a collection leaves bytes without a name"

    async def _kept(self, actor: Actor) -> bool:
        try:
            await self.world.catalog.version(f"{actor.id}@0")
        except VersionNotFound:
            return False
        return True

    # -- actors ----------------------------------------------------------------------------------
    async def create(
        self,
        name: str,
        prompt: tuple[int, ...] | None,
        seed: int,
        source: Version | None = None,
        keyed: bool = False,
    ) -> None:
        once = self.once(keyed)
        command = CreateActor(
            name=name,
            prompt=prompt,
            seed=seed,
            source=None if source is None else source.key,
            once=once,
        )
        origin = None if source is None else source.event
        tokens = () if prompt is None else _first(prompt, 0 if origin is None else origin.position)

        def expected() -> None:
            if source is not None and source.actor.deleted:
                raise Refused(ActorNotFound)
            if name in self.book.names:
                raise Refused(ActorExists)
            made = self._born(name, name, tokens, seed, source)
            if tokens and self._room():
                self._poisoned(made)

        result = await self._run(lambda: self.visor.create(command), expected)
        if name in self.book.actors:
            made = self.book.actors.pop(name)
            made.id = (await self.visor.actor(name)).record.id
            self.book.actors[made.id] = made
            self._keep(once, lambda: self.visor.create(command), result, made)

    def _born(
        self, key: str, name: str, tokens: Sequence[int], seed: int, source: Version | None
    ) -> Actor:
        if source is None:
            return self.book.create(key, name, tokens, seed)
        return self.book.fork(key, name, source.event, source, seed, tokens)

    async def update(
        self,
        actor: Actor,
        *,
        name: str | None = None,
        pinned: bool | None = None,
        generation: int | None = None,
        keyed: bool = False,
    ) -> None:
        once = self.once(keyed)
        command = UpdateActor(
            actor=actor.id, name=name, pinned=pinned, if_generation=generation, once=once
        )

        def expected() -> None:
            self._generation(actor, generation)
            if name is not None and name in self.book.names - {actor.name}:
                raise Refused(ActorExists)
            actor.name = actor.name if name is None else name
            actor.pinned = actor.pinned if pinned is None else pinned
            actor.generation += 1

        result = await self._run(lambda: self.visor.update(command), expected)
        self._keep(once, lambda: self.visor.update(command), result, actor)

    async def delete(self, actor: Actor, generation: int | None = None) -> None:
        command = DeleteActor(actor=actor.id, if_generation=generation)

        def expected() -> None:
            self._generation(actor, generation)
            actor.deleted = True

        await self._run(lambda: self.visor.delete(command), expected)

    # -- turns -----------------------------------------------------------------------------------
    async def append(
        self,
        actor: Actor,
        prompt: tuple[int, ...],
        generation: int | None = None,
        keyed: bool = False,
    ) -> None:
        once = self.once(keyed)
        command = Append(actor=actor.id, prompt=prompt, if_generation=generation, once=once)
        tokens = _first(prompt, actor.position)

        def expected() -> TurnView:
            if not tokens:
                raise Refused(InvalidRequest)
            self._touch(actor)
            self._generation(actor, generation)
            return self._turn(actor, tokens, None, None)

        result = await self._run(lambda: self.visor.append(command), expected)
        if isinstance(result, tuple):
            _same_turn(*result)
        self._keep(once, lambda: self.visor.append(command), result, actor)

    def ask(self, actor: Actor, settings: SamplerSettings, **more: Any) -> Ask:
        """A request to generate, as the model sees it."""
        ends = frozenset(more.get("stop_token_ids", ()))
        return Ask(
            max_tokens=more["max_tokens"],
            settings=settings,
            seed=actor.seed if more.get("seed") is None else more["seed"],
            stop=more.get("stop", ()),
            stop_ids=ends if more.get("ignore_eos") else ends | {EOS},
        )

    async def generate(
        self,
        actor: Actor,
        prompt: tuple[int, ...] | None,
        settings: SamplerSettings,
        *,
        leave_after: int | None = None,
        commit: bool = True,
        generation: int | None = None,
        keyed: bool = False,
        **more: Any,
    ) -> None:
        """A turn; with `leave_after` it is cancelled once so many tokens were told."""
        once = self.once(keyed and commit)
        command = Generate(
            actor=actor.id,
            prompt=prompt,
            settings=settings,
            commit=commit,
            if_generation=generation if commit else None,
            once=once,
            **more,
        )
        tokens = _first(prompt or (), actor.position)
        ask = self.ask(actor, settings, **more)

        async def call() -> TurnView:
            view, told = await self._stream(command, leave_after)
            assert told == view.token_ids
            return view

        def expected() -> tuple[Event, Answer]:
            self._touch(actor)
            if not commit and self._room(actor) < (1 if self._resident(actor) else 2):
                raise Refused(NoFreeSlot)
            self._generation(actor, command.if_generation)
            event = self.book.oracle.say(actor.event, tokens, actor)
            return event, self.book.oracle.answer(event, ask)

        result = await self._run(call, expected)
        if not isinstance(result, tuple):
            return
        (event, answer), view = result
        if not commit:
            shown = self._cut(event, answer, view.token_ids, view.finish.value == "cancelled")
            assert (view.token_ids, view.text) == (shown.tokens, shown.text)
            assert view.finish.value == shown.finish
            return
        cancelled = leave_after is not None and view.finish.value == "cancelled"
        planned = self._turn(
            actor, tokens, ask, self._cut(event, answer, view.token_ids, cancelled)
        )
        _same_turn(planned, view)

        async def again() -> TurnView:
            return (await self._stream(command, None))[0]

        self._keep(once, again, result, actor)

    async def _stream(
        self, command: Generate, leave_after: int | None
    ) -> tuple[TurnView, tuple[int, ...]]:
        stream = await self.visor.generate(command)
        told: list[int] = []
        texts: list[str] = []
        if leave_after == 0:
            stream.cancel()
        async for event in stream:
            assert event.index == len(told)
            told.append(event.token)
            texts.append(event.text)
            if leave_after == len(told):
                stream.cancel()
        view = await stream.result()
        assert "".join(texts) == view.text or len(told) == len(view.token_ids)
        return view, tuple(told)

    def _cut(self, event: Event, answer: Answer, tokens: Sequence[int], cancelled: bool) -> Answer:
        """The answer as far as a cancelled turn may have got."""
        if not cancelled:
            return answer
        count = len(tokens)
        assert count <= len(answer.tokens)
        data = bytes(token for token in answer.tokens[:count] if token < 256)
        return Answer(answer.tokens[:count], data.decode(errors="replace"), "cancelled")

    def _turn(
        self, actor: Actor, tokens: Sequence[int], ask: Ask | None, answer: Answer | None
    ) -> TurnView:
        """A turn in the model. `ask` None: an append."""
        begun = self.book.oracle.say(actor.event, tokens, actor)
        if ask is None:
            answer = Answer((), "", "error" if begun.poisoned else "stop")
        assert answer is not None
        self.book.turn(actor, tokens, answer.tokens)
        view = _view(actor, len(tokens), answer)
        if answer.finish == "error":
            self._quarantine(actor)
            return replace(view, error=ActorQuarantined.code)
        return view

    # -- branches --------------------------------------------------------------------------------
    async def snapshot(
        self,
        actor: Actor,
        tag: str | None,
        wait: bool,
        generation: int | None = None,
        keyed: bool = False,
    ) -> None:
        once = self.once(keyed)
        command = Snapshot(actor=actor.id, tag=tag, wait=wait, if_generation=generation, once=once)
        here = await self.world.catalog.actor(actor.id)
        imaged = await self.world.catalog.image_at(here.segment, here.position) is not None
        held = self.world.residency.actors.get(actor.id)
        # what a cancelled prompt left pending has to be caught up in another slot
        rests = held is not None and held.slot is not None and held.absorbed == held.rest > 0

        def expected() -> Version | None:
            named = None if tag is None else self.book.tags.get(tag)
            if named is not None and named.actor is not actor and not named.actor.deleted:
                raise Refused(InvalidRequest)
            self._generation(actor, generation)
            made = self.book.snapshot(actor)
            if tag is not None:
                self.book.tags[tag] = made
            if wait and not imaged and not (rests or self._room()):
                raise Refused(NoFreeSlot)
            if wait and not imaged and actor.event.poisoned:
                raise Refused(ActorQuarantined)
            return made

        result = await self._run(lambda: self.visor.snapshot(command), expected)
        if isinstance(result, tuple):
            made, record = result
            assert (record.handle, record.op.value) == (made.handle, "snapshot")
            assert tag is None or (await self.visor.version(tag)).handle == made.handle
            assert not wait or record.digest is not None
        self._keep(once, lambda: self.visor.snapshot(command), result, actor)

    def origin(self, actor: Actor, place: Version | int | None) -> tuple[Event, Version | None]:
        """A place of an actor's past. Raises: Refused."""
        if isinstance(place, Version):
            if not self.book.reachable(actor, place):
                raise Refused(InvalidRequest)
            return place.event, place
        position = actor.position if place is None else place
        if not actor.event.base <= position <= actor.position:
            raise Refused(InvalidRequest)
        found = self.book.find(actor, position)
        if found is None:
            raise Refused(VersionNotFound)
        return found, None

    async def fork(
        self,
        actor: Actor,
        names: tuple[str, ...],
        place: Version | int | None,
        rng: Rng,
        seeds: tuple[int, ...],
        generation: int | None = None,
        keyed: bool = False,
        asked: bool = False,
    ) -> None:
        """Children; with `asked` the first is woken, and must cost what a dry run told."""
        once = self.once(keyed)
        command = Fork(
            actor=actor.id,
            count=len(names),
            names=names,
            at=place.key if isinstance(place, Version) else place,
            rng=rng,
            seeds=seeds,
            if_generation=generation,
            once=once,
        )

        def expected() -> tuple[Event, Version | None]:
            self._generation(actor, generation)
            found = self.origin(actor, place)
            if set(names) & self.book.names or len(set(names)) < len(names):
                raise Refused(ActorExists)
            return found

        told = await self._told(command) if asked else None
        result = await self._run(lambda: self.visor.fork(command), expected)
        if isinstance(result, tuple):
            (event, at), views = result
            at = at or self.book.anchor(event)
            assert [view.record.name for view in views] == list(names)
            found = [view.record.seed for view in views]
            if seeds:
                assert found == list(seeds)
            elif rng is Rng.INHERIT:
                assert found == [actor.seed] * len(names)
            else:
                assert len({*found, actor.seed}) == len(names) + 1, "a fork was not re-seeded"
            for view in views:
                self.book.fork(view.record.id, view.record.name, event, at, view.record.seed, ())
            if asked:
                await self._paid(self.book.actors[views[0].record.id], told)
        self._keep(once, lambda: self.visor.fork(command), result, None)

    async def mutate(
        self,
        actor: Actor,
        mutation: Mutation,
        others: tuple[Version, ...],
        generation: int | None = None,
        keyed: bool = False,
    ) -> None:
        once = self.once(keyed)
        command = Mutate(actor=actor.id, mutation=mutation, if_generation=generation, once=once)
        bare = [v for v in others if not v.actor.deleted and not await self._imaged(v)]

        def expected() -> Version:
            if any(version.actor.deleted for version in others):
                raise Refused(ActorNotFound)
            for version in others:
                if version in bare and not self._room():
                    raise Refused(NoFreeSlot)
                if version.event.poisoned:
                    raise Refused(ActorQuarantined)
            self._generation(actor, generation)
            self._touch(actor)
            try:
                return self.book.mutate(actor, mutation, others)
            except InvalidRequest:
                raise Refused(InvalidRequest) from None

        result = await self._run(lambda: self.visor.mutate(command), expected)
        if isinstance(result, tuple):
            made, record = result
            assert record.handle == made.handle
            assert record.digest is not None
        self._keep(once, lambda: self.visor.mutate(command), result, actor)

    async def rollback(
        self,
        actor: Actor,
        place: Version | int,
        rng: Rng,
        generation: int | None = None,
        keyed: bool = False,
        asked: bool = False,
    ) -> None:
        once = self.once(keyed)
        command = Rollback(
            actor=actor.id,
            to=place.key if isinstance(place, Version) else place,
            rng=rng,
            if_generation=generation,
            once=once,
        )

        def expected() -> tuple[Event, Version | None]:
            try:
                found = self.origin(actor, place)
            except Refused as refused:
                if refused.error is VersionNotFound:  # the transaction looks at If-Match first
                    self._generation(actor, generation)
                raise
            self._generation(actor, generation)
            return found

        told = await self._told(command) if asked else None
        result = await self._run(lambda: self.visor.rollback(command), expected)
        if isinstance(result, tuple):
            (event, at), view = result
            at = at or self.book.anchor(event)
            seed = view.record.seed
            assert (seed == actor.seed) is (rng is Rng.INHERIT), "the seed of a rollback"
            self.book.rollback(actor, event, at, seed)
            if asked:
                await self._paid(actor, told)
        self._keep(once, lambda: self.visor.rollback(command), result, actor)

    async def _told(self, command: Fork | Rollback) -> CostView | None:
        """What a dry run tells; None if it is refused."""
        try:
            view: CostView = await self.visor.cost(command)
        except StatevisorError:
            return None
        return view

    async def _paid(self, actor: Actor, told: CostView | None) -> None:
        """The first touch of an actor that has just come to its place costs what was told."""
        assert told is not None, "a dry run refused what was done"
        assert told.position == actor.position
        assert told.tokens <= told.bound_tokens
        counts, free = self.world.meter.counts, self.world.residency.slots.free
        before = counts["replayed_tokens_total"]
        await self.resume(actor)
        paid = counts["replayed_tokens_total"] - before
        # without a free slot somebody was moved for it, maybe the very one it was to be copied from
        if free and not actor.event.poisoned:
            assert paid == told.tokens, f"{paid} tokens replayed: {told}"

    # -- files -----------------------------------------------------------------------------------
    async def _imaged(self, version: Version) -> bool:
        return (await self.world.catalog.version(version.key)).digest is not None

    async def export(self, version: Version) -> None:
        imaged = await self._imaged(version)

        def expected() -> None:
            if version.actor.deleted:
                raise Refused(ActorNotFound)
            if not imaged and not self._room():
                raise Refused(NoFreeSlot)
            if version.event.poisoned:
                raise Refused(ActorQuarantined)

        result = await self._run(lambda: self.visor.export(version.key), expected)
        if isinstance(result, tuple):
            row = bytearray(ROW_BYTES)
            prints = self.world.guest.fingerprints
            meta = self.world.images.decode(result[1], memoryview(row), prints)
            event = version.event
            assert (meta.position, bytes(row)) == (event.position, event.row), version.handle
            assert meta.pending == (() if event.pending is None else (event.pending,))
            self.files.append((result[1], event))

    async def bring(self, name: str, which: int, keyed: bool = False) -> None:
        once = self.once(keyed)
        file, event = self.files[which % len(self.files)]
        command = ImportImage(name=name, file=file, once=once)

        def expected() -> None:
            if name in self.book.names:
                raise Refused(ActorExists)

        known = await self._known(file)
        result = await self._run(lambda: self.visor.import_image(command), expected)
        if isinstance(result, tuple):
            record = (await self.visor.actor(name)).record
            pending = () if event.pending is None else (event.pending,)
            self.book.bring(record.id, name, record.seed, event.row, event.position, pending)
            assert result[1].digest is not None
        elif not known:
            self.torn = True  # the file's state is written first, and left to the collector
        self._keep(once, lambda: self.visor.import_image(command), result, None)

    async def _known(self, file: bytes) -> bool:
        """Whether the catalog has an image of a file's state."""
        images, guest = self.world.images, self.world.guest
        row = memoryview(bytearray(guest.layout.row_bytes))
        meta = images.decode(file, row, guest.fingerprints)
        return await self.world.catalog.image(images.digest(row, meta)) is not None

    async def verify(self, version: Version) -> None:
        def expected() -> None:
            if version.actor.deleted:
                raise Refused(ActorNotFound)
            if version.event.poisoned:
                raise Refused(ActorQuarantined if self._room() else NoFreeSlot)
            if version.event.kind != "import" and not self._room():
                raise Refused(NoFreeSlot)

        result = await self._run(lambda: self.visor.verify(version.key), expected)
        if isinstance(result, tuple):
            assert result[1].ok, f"{version.handle}: {result[1]}"

    # -- tiers -----------------------------------------------------------------------------------
    async def hibernate(self, actor: Actor, tier: Tier, generation: int | None = None) -> None:
        source = (await self.visor.actor(actor.id)).tier
        command = Hibernate(actor=actor.id, tier=tier, if_generation=generation)
        target = tier if source is Tier.GPU or tier is Tier.NVME else source

        def expected() -> None:
            self._generation(actor, generation)
            if actor.quarantined:
                raise Refused(ActorQuarantined)
            if source is Tier.GPU:
                self._poisoned(actor)
                if tier is Tier.HOST and not self._frames():
                    raise Refused(NoFreeSlot)

        result = await self._run(lambda: self.visor.hibernate(command), expected)
        if isinstance(result, tuple):
            assert result[1].tier is target, f"{actor.name} is in {result[1].tier}, not {target}"

    async def resume(self, actor: Actor, generation: int | None = None) -> None:
        command = Resume(actor=actor.id, if_generation=generation)

        def expected() -> None:
            self._generation(actor, generation)
            self._touch(actor)

        result = await self._run(lambda: self.visor.resume(command), expected)
        if isinstance(result, tuple):
            assert (result[1].tier, result[1].status) == (Tier.GPU, "idle")

    async def evict(self, source: Tier, target: Tier, count: int | None) -> None:
        there = [one for one in self.book.living if await self._tier(one) is source]
        loose = [one for one in there if not one.pinned]
        command = Evict(source=source, target=target, count=count)
        if target is Tier.HOST and not self.world.frames and loose and count != 0:
            return
        full = target is Tier.HOST and not self._frames()
        names = {one.name for one in loose}
        bad = {one.name for one in loose if one.event.poisoned}
        try:
            view = await self.visor.evict(command)
        except NoFreeSlot:
            assert full, "there was a frame to be had"
            assert names - bad, "nobody needed one"
            return
        assert set(view.moved) <= names, "a pinned actor was evicted"
        most = 0 if full else len(names) if count is None else min(count, len(names))
        assert most - len(bad) <= len(view.moved) <= most
        assert {one.name for one in there if one.pinned} <= set(view.skipped)
        for name in view.moved:
            assert (await self.visor.actor(name)).tier in (target, Tier.NVME)

    async def _tier(self, actor: Actor) -> Tier:
        tier: Tier = (await self.visor.actor(actor.id)).tier
        return tier

    async def damage(self, which: int, at: int) -> None:
        """Flip one bit of a frame in host memory, and wake whose it is."""
        frames = self.world.residency.frames
        framed = [one for one in self.book.living if frames.get(one.id) is not None]
        if framed:
            actor = framed[which % len(framed)]
            self.world.frame(actor.id)[at % ROW_BYTES] ^= 1
            self.flipped ^= {(actor.id, at % ROW_BYTES)}
            if at % 2:
                await self.resume(actor)

    # -- what breaks off -------------------------------------------------------------------------
    async def broken_turn(
        self,
        actor: Actor,
        prompt: tuple[int, ...] | None,
        settings: SamplerSettings,
        *,
        ticks: int,
        crash: bool,
        keyed: bool = False,
        **more: Any,
    ) -> None:
        """A turn whose caller, or whose whole process, goes away in the middle."""
        tokens = _first(prompt or (), actor.position)
        if not tokens and actor.position == 0:
            return
        once = self.once(keyed)
        command = Generate(actor=actor.id, prompt=prompt, settings=settings, once=once, **more)
        ask = self.ask(actor, settings, **more)
        begun = self.book.oracle.say(actor.event, tokens, actor)
        answer = self.book.oracle.answer(begun, ask)
        told: list[int] = []

        async def caller() -> None:
            stream = await self.visor.generate(command)
            async for event in stream:
                told.append(event.token)

        async def again() -> TurnView:
            return (await self._stream(command, None))[0]

        await self._break(caller, ticks, crash)
        assert tuple(told) == answer.tokens[: len(told)]
        record = await self.world.catalog.actor(actor.id)
        grown = record.generation - actor.generation
        if grown < 2:
            assert not told, "tokens were told of a turn that did not begin"
            self._healed(actor, grown)
            return
        count = record.position - begun.position
        assert len(told) <= count <= len(answer.tokens), f"{count} tokens, {len(told)} told"
        self.book.turn(actor, tokens, answer.tokens[:count])
        self._healed(actor, grown - 2)
        if once is not None:
            done = await self.world.catalog.operation(once.key)
            if done.result is None:
                self.keyed.append(Keyed(again, None, actor, answer, begun, actor.event))

    async def broken(self, call: Callable[[], Awaitable[Any]], ticks: int, crash: bool) -> None:
        """Some other work of the hypervisor that breaks off, and changes nothing durable."""
        await self._break(call, ticks, crash)

    async def _break(self, call: Callable[[], Awaitable[Any]], ticks: int, crash: bool) -> None:
        task: asyncio.Future[Any] = asyncio.ensure_future(call())
        for _ in range(ticks):
            if task.done():
                break
            await asyncio.sleep(0)
        task.cancel()
        if crash:
            self.torn = True
            await self.world.stop()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        allowed = (StatevisorError, asyncio.CancelledError)
        if isinstance(result, BaseException) and not isinstance(result, allowed) and not crash:
            raise result
        if crash:
            await self.world.start()
        else:
            await self.world.quiet()

    def _healed(self, actor: Actor, grown: int) -> None:
        """What else may have happened to an actor on the way: a quarantine."""
        if grown:
            assert grown == 1
            self._quarantine(actor)

    async def failed_groups(
        self,
        actor: Actor,
        settings: SamplerSettings,
        *,
        intact: int,
        broken: int,
        max_tokens: int,
    ) -> None:
        """A turn whose journal the disk refuses in the middle."""
        if actor.quarantined or actor.event.poisoned or actor.event.pending in (None, POISON):
            return
        if not self._resident(actor) and not self._room():
            return
        catalog = self.world.catalog
        command = Generate(
            actor=actor.id, settings=settings, max_tokens=max_tokens, ignore_eos=True
        )
        ask = self.ask(actor, settings, max_tokens=max_tokens, ignore_eos=True)
        answer = self.book.oracle.answer(actor.event, ask)
        catalog.intact, catalog.broken = intact, broken
        stream = await self.visor.generate(command)
        told = [event.token async for event in stream]
        view = await stream.result()
        struck = catalog.broken < broken
        catalog.intact = catalog.broken = 0
        count = len(view.token_ids)
        assert tuple(told) == view.token_ids == answer.tokens[:count]
        assert (view.finish.value == "error") is struck
        assert struck or count == max_tokens
        self.book.turn(actor, (), view.token_ids)

    # -- repetitions -----------------------------------------------------------------------------
    def _keep(
        self, once: Once | None, again: Callable[[], Awaitable[Any]], result: Any, actor: Any
    ) -> None:
        if once is not None and isinstance(result, tuple):
            self.keyed.append(Keyed(again, result[1], actor))

    async def repeat(self, which: int) -> None:
        """Send a command with its Idempotency-Key once more."""
        keyed = self.keyed[which % len(self.keyed)]
        actor = keyed.actor
        if keyed.told is None:
            await self._resume_turn(keyed)
            return
        if isinstance(keyed.told, TurnView):
            if actor is not None and actor.deleted:
                return
            view = await keyed.again()
            assert view == keyed.told, "a repeated turn answers as it did"
            return
        answer = await keyed.again()
        assert _identity(answer) == _identity(keyed.told), (actor, answer)

    async def _resume_turn(self, keyed: Keyed) -> None:
        actor, answer, begun = keyed.actor, keyed.answer, keyed.begun
        assert actor is not None
        assert answer is not None
        assert begun is not None
        stood = keyed.stood

        def expected() -> Answer:
            if actor.deleted:
                raise Refused(ActorNotFound)
            if actor.event is not stood:
                raise Refused(InvalidRequest)
            self._touch(actor)
            rest = answer.tokens[actor.position - begun.position :]
            self.book.turn(actor, (), rest)
            if answer.finish == "error":
                self._quarantine(actor)
            return answer

        result = await self._run(keyed.again, expected)
        if isinstance(result, tuple):
            view = result[1]
            assert view.token_ids == answer.tokens
            assert (view.text, view.finish.value) == (answer.text, answer.finish)
            keyed.told = view
            if view.finish.value == "error":
                self.keyed.remove(keyed)


def _first(prompt: Sequence[int], position: int) -> tuple[int, ...]:
    """A prompt as it is journalled: the first of an actor begins with BOS."""
    if position == 0 and tuple(prompt[:1]) != (BOS,):
        return (BOS, *prompt)
    return tuple(prompt)


def _view(actor: Actor, prompt_tokens: int, answer: Answer) -> TurnView:
    """What a turn must have answered, but for its id."""
    return TurnView(
        id="",
        actor=actor.name,
        text=answer.text,
        token_ids=answer.tokens,
        finish=FinishReason(answer.finish),
        position=actor.position,
        durable_position=actor.position,
        generation=actor.generation,
        prompt_tokens=prompt_tokens,
    )


def _same_turn(planned: TurnView, view: TurnView) -> None:
    assert replace(view, id="", logprobs=None) == planned, f"{view} is not {planned}"


def _identity(answer: Any) -> Any:
    """What stays of an answer, however long ago it was given."""
    if isinstance(answer, tuple):
        return tuple(_identity(one) for one in answer)
    record = getattr(answer, "record", None)
    if record is not None:
        return record.id
    return (answer.actor_id, answer.seq, answer.position, answer.op)
