"""Random lives of a hypervisor: hypothesis draws the operations, the model answers for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from statemodel.book import Actor, Version
from statemodel.checks import check_lineage
from statemodel.session import Session
from statemodel.world import StoreWorld, TwinWorld, World, within

from statevisor.guests.toy import POISON
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.vocab import Rng, Tier

#: Actors that may live at once, and tokens after which an actor is not made longer.
_ACTORS, _LENGTH = 7, 400
#: An operation that takes so long waits for something that never comes.
_HANGS_S = 20.0

#: An operation as the machine calls it.
Rule = Callable[..., None]

which = st.integers(0, 40)
names = st.sampled_from("abcdefghij")
seeds = st.integers(0, 5)
odd = st.one_of(st.binary(max_size=9), st.binary(min_size=30, max_size=50)).map(tuple)
#: One in many prompts holds the token that makes a state not finite.
prompts = st.one_of(
    odd, odd, odd, odd, odd, odd, odd, st.builds(lambda a, b: (*a, POISON, *b), odd, odd)
)
generations = st.sampled_from([None, None, None, None, 0, 1])
rare = st.sampled_from([False, False, False, True])
rngs = st.sampled_from(list(Rng))
settings = st.one_of(
    st.just(SamplerSettings()),
    st.builds(
        SamplerSettings,
        temperature=st.sampled_from([0.0, 0.7, 1.5]),
        top_k=st.sampled_from([0, 2]),
        presence_penalty=st.sampled_from([0.0, 0.5]),
        frequency_penalty=st.sampled_from([0.0, 1.25]),
        penalty_decay=st.sampled_from([1.0, 0.9]),
    ),
)
wishes = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 24),
        "seed": st.sampled_from([None, None, 3]),
        "stop": st.sampled_from([(), (), ("e",), ("th", "h"), (", ", ".")]),
        "stop_token_ids": st.sampled_from([(), (), (97,), (32, 111)]),
        "ignore_eos": st.booleans(),
    }
)
selections = st.fixed_dictionaries(
    {
        "families": st.sampled_from([None, None, ("roll",), ("shift",), ("none",)]),
        "layers": st.sampled_from([None, None, (0,), (1,), (0, 1)]),
    }
)
plain_rules = st.sampled_from(
    [
        ("decay", {"alpha": 0.5}),
        ("scale", {"factor": 3}),
        ("scale", {"factor": "much"}),
        ("zero", {}),
        ("noise", {"std": 1.0, "seed": 4}),
        ("noise", {"std": 1.0, "seed": 9}),
    ]
)


def _only(possible: Callable[[Life], bool]) -> Callable[[Rule], Rule]:
    """Do nothing where an operation has no object.

    No precondition: what there is may depend on the moment at which a turn broke off, and the
    drawing of rules must not.
    """

    def make(operation: Rule) -> Rule:
        @wraps(operation)
        def guarded(self: Life, **drawn: Any) -> None:
            if possible(self):
                operation(self, **drawn)

        return guarded

    return make


some = _only(lambda life: bool(life.living()))
room = _only(lambda life: len(life.living()) < _ACTORS)
filed = _only(lambda life: bool(life.session.files))
known = _only(lambda life: bool(life.session.keyed))


class Life(RuleBasedStateMachine):
    """One hypervisor on twins, from its first start to its end."""

    spoil: ClassVar[Callable[[World], None]] = staticmethod(lambda world: None)
    operations: ClassVar[int] = 0  #: done by all machines of this process

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.session: Session
        self.sound = True  #: whether the last operation ended as the model says

    # -- the machine itself ----------------------------------------------------------------------
    def make(self, **shape: Any) -> World:
        return TwinWorld(**shape, spoil=type(self).spoil)

    @initialize(
        slots=st.integers(1, 4),
        frames=st.integers(0, 2),
        lag=st.sampled_from([0, 0, 3]),
        step=st.sampled_from([4, 64]),
        checkpoint=st.sampled_from([8, 4096]),
        memory=st.sampled_from([2, 10_000]),
        dense=st.sampled_from([4, 32, 8192]),
        recover=st.sampled_from([0, 2, 64]),
    )
    def start(
        self,
        slots: int,
        frames: int,
        lag: int,
        step: int,
        checkpoint: int,
        memory: int,
        dense: int,
        recover: int,
    ) -> None:
        config = {
            "recover_actors": recover,
            "step_tokens": step,
            "checkpoint_tokens": checkpoint,
            "actors_in_memory": memory,
        }
        world = self.make(slots=slots, frames=frames, lag=lag, dense=dense, config=config)
        self.session = Session(world)
        self.loop.run_until_complete(world.start())
        self.do(self.session.create("a", tuple(b"once"), 7))

    def do(self, work: Coroutine[Any, Any, Any]) -> None:
        """One operation, and everything compared behind it."""
        type(self).operations += 1

        async def whole() -> None:
            self.session.world.clock.seconds += 1
            await work
            await self.session.settle()

        self.sound = False
        self.loop.run_until_complete(within(_HANGS_S, whole()))
        self.sound = True

    def teardown(self) -> None:
        if not hasattr(self, "session"):
            self.loop.close()
            return
        try:
            if self.sound:
                self.loop.run_until_complete(check_lineage(self.session))
        finally:
            self.loop.run_until_complete(self.session.world.leave())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    # -- who and where ---------------------------------------------------------------------------
    def living(self) -> list[Actor]:
        return self.session.book.living

    def pick(self, index: int) -> Actor:
        found = self.living()
        return found[index % len(found)]

    def version(self, index: int) -> Version:
        found = self.session.book.versions
        return found[-1 - index % len(found)]

    def place(self, actor: Actor, index: int, bare: bool) -> Version | int:
        """Mostly a place of this actor's past: a position, or a version of its own."""
        if bare:
            return index * 7 % (actor.position + 2)
        if index % 5 == 0:
            return self.version(index)
        return actor.versions[-1 - index % len(actor.versions)]

    def generation(self, actor: Actor, offset: int | None) -> int | None:
        return None if offset is None else actor.generation + offset

    # -- actors ----------------------------------------------------------------------------------
    @rule(name=names, prompt=st.one_of(st.none(), prompts), seed=seeds, keyed=rare)
    @room
    def create(self, name: str, prompt: Any, seed: int, keyed: bool) -> None:
        self.do(self.session.create(name, prompt, seed, keyed=keyed))

    @rule(name=names, prompt=st.one_of(st.none(), prompts), at=which, keyed=rare)
    @room
    @some
    def create_from(self, name: str, prompt: Any, at: int, keyed: bool) -> None:
        self.do(self.session.create(name, prompt, 5, self.version(at), keyed=keyed))

    @rule(who=which, pinned=st.booleans(), generation=generations, keyed=rare)
    @some
    def pin(self, who: int, pinned: bool, generation: int | None, keyed: bool) -> None:
        actor = self.pick(who)
        wanted = self.generation(actor, generation)
        self.do(self.session.update(actor, pinned=pinned, generation=wanted, keyed=keyed))

    @rule(who=which, name=names)
    @some
    def rename(self, who: int, name: str) -> None:
        self.do(self.session.update(self.pick(who), name=name))

    @rule(who=which, generation=generations)
    @some
    def delete(self, who: int, generation: int | None) -> None:
        actor = self.pick(who)
        self.do(self.session.delete(actor, self.generation(actor, generation)))

    # -- turns -----------------------------------------------------------------------------------
    @rule(who=which, prompt=prompts, generation=generations, keyed=rare)
    @some
    def append(self, who: int, prompt: Any, generation: int | None, keyed: bool) -> None:
        actor = self.short(who)
        wanted = self.generation(actor, generation)
        self.do(self.session.append(actor, prompt, wanted, keyed))

    @rule(
        who=which,
        prompt=st.one_of(st.none(), prompts),
        how=settings,
        wish=wishes,
        leave=st.sampled_from([None, None, None, 0, 1, 4]),
        commit=st.sampled_from([True, True, True, False]),
        generation=generations,
        keyed=rare,
    )
    @some
    def generate(
        self,
        who: int,
        prompt: Any,
        how: SamplerSettings,
        wish: dict[str, Any],
        leave: int | None,
        commit: bool,
        generation: int | None,
        keyed: bool,
    ) -> None:
        actor = self.short(who)
        self.do(
            self.session.generate(
                actor,
                prompt,
                how,
                leave_after=leave,
                commit=commit,
                generation=self.generation(actor, generation),
                keyed=keyed,
                **wish,
            )
        )

    def short(self, who: int) -> Actor:
        """An actor that may grow; the shortest, if this one is long already."""
        actor = self.pick(who)
        if actor.position < _LENGTH:
            return actor
        return min(self.living(), key=lambda one: one.position)

    @rule(
        who=which,
        prompt=st.one_of(st.none(), prompts),
        how=settings,
        wish=wishes,
        ticks=st.integers(0, 60),
        crash=st.booleans(),
        keyed=st.booleans(),
    )
    @some
    def break_a_turn(
        self,
        who: int,
        prompt: Any,
        how: SamplerSettings,
        wish: dict[str, Any],
        ticks: int,
        crash: bool,
        keyed: bool,
    ) -> None:
        self.do(
            self.session.broken_turn(
                self.short(who), prompt, how, ticks=ticks, crash=crash, keyed=keyed, **wish
            )
        )

    @rule(who=which, how=settings, intact=st.integers(0, 3), broken=st.integers(1, 2))
    @some
    def refuse_a_group(self, who: int, how: SamplerSettings, intact: int, broken: int) -> None:
        self.do(
            self.session.failed_groups(
                self.short(who), how, intact=intact, broken=broken, max_tokens=12
            )
        )

    # -- branches --------------------------------------------------------------------------------
    @rule(
        who=which,
        tag=st.sampled_from([None, "here", "there"]),
        wait=st.booleans(),
        generation=generations,
        keyed=rare,
    )
    @some
    def snapshot(
        self, who: int, tag: str | None, wait: bool, generation: int | None, keyed: bool
    ) -> None:
        actor = self.pick(who)
        wanted = self.generation(actor, generation)
        self.do(self.session.snapshot(actor, tag, wait, wanted, keyed))

    @rule(
        who=which,
        children=st.lists(names, min_size=1, max_size=3),
        at=st.one_of(st.none(), which),
        bare=st.booleans(),
        rng=rngs,
        seeded=rare,
        generation=generations,
        keyed=rare,
        asked=st.booleans(),
    )
    @room
    @some
    def fork(
        self,
        who: int,
        children: list[str],
        at: int | None,
        bare: bool,
        rng: Rng,
        seeded: bool,
        generation: int | None,
        keyed: bool,
        asked: bool,
    ) -> None:
        actor = self.pick(who)
        given = tuple(range(len(children))) if seeded else ()
        place = None if at is None else self.place(actor, at, bare)
        wanted = self.generation(actor, generation)
        self.do(self.session.fork(actor, tuple(children), place, rng, given, wanted, keyed, asked))

    @rule(who=which, change=plain_rules, select=selections, generation=generations, keyed=rare)
    @some
    def mutate(
        self,
        who: int,
        change: tuple[str, dict[str, Any]],
        select: dict[str, Any],
        generation: int | None,
        keyed: bool,
    ) -> None:
        actor = self.pick(who)
        mutation = Mutation(rule=change[0], params=change[1], **select)
        wanted = self.generation(actor, generation)
        self.do(self.session.mutate(actor, mutation, (), wanted, keyed))

    @rule(
        who=which,
        kind=st.sampled_from(["set", "add", "blend"]),
        others=st.lists(which, min_size=1, max_size=2),
        select=selections,
        by_name=st.booleans(),
        keyed=rare,
    )
    @some
    def merge(
        self,
        who: int,
        kind: str,
        others: list[int],
        select: dict[str, Any],
        by_name: bool,
        keyed: bool,
    ) -> None:
        versions = tuple(self.version(index) for index in others)
        handles = [one.handle if by_name and not one.actor.deleted else one.key for one in versions]
        if kind == "blend":
            params: dict[str, Any] = {"others": handles, "weights": [0.25] * len(handles)}
        else:
            versions = versions[:1]
            params = {"from": handles[0], "factor": 2}
        mutation = Mutation(rule=kind, params=params, **select)
        self.do(self.session.mutate(self.pick(who), mutation, versions, None, keyed))

    @rule(
        who=which,
        at=which,
        bare=st.booleans(),
        rng=rngs,
        generation=generations,
        keyed=rare,
        asked=st.booleans(),
    )
    @some
    def rollback(
        self,
        who: int,
        at: int,
        bare: bool,
        rng: Rng,
        generation: int | None,
        keyed: bool,
        asked: bool,
    ) -> None:
        actor = self.pick(who)
        place, wanted = self.place(actor, at, bare), self.generation(actor, generation)
        self.do(self.session.rollback(actor, place, rng, wanted, keyed, asked))

    # -- files -----------------------------------------------------------------------------------
    @rule(at=which)
    @some
    def export(self, at: int) -> None:
        self.do(self.session.export(self.version(at)))

    @rule(name=names, file=which, keyed=rare)
    @room
    @filed
    def bring(self, name: str, file: int, keyed: bool) -> None:
        self.do(self.session.bring(name, file, keyed))

    @rule(at=which)
    @some
    def verify(self, at: int) -> None:
        self.do(self.session.verify(self.version(at)))

    # -- tiers -----------------------------------------------------------------------------------
    @rule(who=which, tier=st.sampled_from([Tier.HOST, Tier.NVME]), generation=generations)
    @some
    def hibernate(self, who: int, tier: Tier, generation: int | None) -> None:
        actor = self.pick(who)
        self.do(self.session.hibernate(actor, tier, self.generation(actor, generation)))

    @rule(who=which, generation=generations)
    @some
    def resume(self, who: int, generation: int | None) -> None:
        actor = self.pick(who)
        self.do(self.session.resume(actor, self.generation(actor, generation)))

    @rule(
        way=st.sampled_from([(Tier.GPU, Tier.HOST), (Tier.GPU, Tier.NVME), (Tier.HOST, Tier.NVME)]),
        count=st.sampled_from([None, 0, 1, 2]),
    )
    def evict(self, way: tuple[Tier, Tier], count: int | None) -> None:
        self.do(self.session.evict(*way, count))

    @rule(who=which, at=st.integers(0, 79))
    def damage(self, who: int, at: int) -> None:
        self.do(self.session.damage(who, at))

    @rule(grace_s=st.sampled_from([0.0, 0.0, 3.0]), dry_run=rare)
    def gc(self, grace_s: float, dry_run: bool) -> None:
        self.do(self.session.gc(grace_s, dry_run))

    # -- life of the process ---------------------------------------------------------------------
    @rule()
    def crash(self) -> None:
        self.do(self.session.crash())

    @rule()
    def drain(self) -> None:
        self.do(self.session.drain())

    @rule(index=which)
    @known
    def repeat(self, index: int) -> None:
        self.do(self.session.repeat(index))


class StoredLife(Life):
    """The same on SQLite and slab files."""

    migrated: ClassVar[Path]

    def make(self, **shape: Any) -> World:
        self._folder = TemporaryDirectory()
        return StoreWorld(
            Path(self._folder.name), type(self).migrated, **shape, spoil=type(self).spoil
        )

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "_folder"):
            self._folder.cleanup()
