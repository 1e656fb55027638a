"""Does one thing after the other with actors of its own, and writes down what comes of it."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from statevisor.hypervisor.commands import (
    Append,
    CreateActor,
    DeleteActor,
    Evict,
    Fork,
    Generate,
    Hibernate,
    Mutate,
    Resume,
    Rollback,
    Snapshot,
)
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.vocab import Rng, Tier

from acks import Acks  # isort: skip  # beside this file
from world import World  # isort: skip

#: How often each is done, of all.
WEIGHTS = {
    "append": 3,
    "generate": 8,
    "snapshot": 2,
    "fork": 2,
    "mutate": 2,
    "rollback": 2,
    "move": 5,
    "disown": 0.5,
    "delete": 0.3,
}


@dataclass(slots=True)
class Mine:
    """An actor as the worker that owns it knows it."""

    id: str
    position: int
    moved: bool = False  #: it has had a slot since it last began on a segment


class Worker:
    """Does one thing after the other with actors of its own."""

    def __init__(self, world: World, acks: Acks, rng: random.Random, name: str) -> None:
        self._visor = world.visor
        self._catalog, self._disowned = world.catalog, world.disowned
        (batcher,) = world.visor._batchers.values()
        self._states = batcher.residency.states
        self._rules = sorted({"scale", "decay"} & set(world.guest.rules))
        self._bos = world.guest.tokenizer.bos
        self._acks = acks
        self._rng = rng
        self._names = (f"{name}-{n}" for n in itertools.count())
        self._mine: list[Mine] = []
        self._handles: dict[str, list[tuple[str, int]]] = {}

    async def work(self, steps: int) -> None:
        rng = self._rng
        await self.create()
        for _ in range(steps):
            if len(self._mine) < 2 or (len(self._mine) < 5 and rng.random() < 0.1):
                await self.create()
            actor = rng.choice(self._mine)
            name = rng.choices((*WEIGHTS,), (*WEIGHTS.values(),))[0]
            await getattr(self, name)(actor)

    async def tour(self) -> None:
        """Every operation at least once, the same each time."""
        await self.create()
        actor = self._mine[0]
        for step in (
            self.append, self.generate, self.snapshot, self.down, self.generate, self.mutate,
            self.fork, self.down, self.generate, self.rollback, self.append, self.mutate,
            self.down, self.generate, self.down, self.disown, self.generate, self.down,
        ):  # fmt: skip
            await step(actor)
        await self.generate(self._mine[-1])
        await self.delete(self._mine[-1])

    def _prompt(self, position: int, least: int = 0) -> list[int]:
        rng = self._rng
        tokens = [rng.randrange(256) for _ in range(rng.choice((least, 1, 3, 9, 40)))]
        return [self._bos, *tokens] if not position and self._bos is not None else tokens

    async def create(self) -> None:
        name, seed = next(self._names), self._rng.randrange(2**40)
        tokens = self._prompt(0, 1)
        self._acks.ask("create", name=name, prompt=tokens)
        view = await self._visor.create(CreateActor(name=name, prompt=tuple(tokens), seed=seed))
        made = view.record
        self._acks.ack("create", actor=made.id, name=name, seed=made.seed)
        self._mine.append(Mine(made.id, made.position))
        self._handles[made.id] = [(f"{made.id}@0", made.position)]

    async def append(self, actor: Mine) -> None:
        tokens = self._prompt(actor.position, 1)
        self._acks.ask("append", actor=actor.id, prompt=tokens)
        view = await self._visor.append(Append(actor=actor.id, prompt=tuple(tokens)))
        self._acks.ack("append", actor=actor.id, turn=view.id, position=view.position)
        actor.position, actor.moved = view.position, True

    async def generate(self, actor: Mine, whole: int | None = None) -> None:
        rng = self._rng
        tokens = self._prompt(actor.position)
        settings = SamplerSettings(
            temperature=rng.choice((0.0, 0.8, 1.5)), top_k=rng.choice((0, 0, 4))
        )
        seed = rng.choice((None, rng.randrange(2**40)))
        count = whole or rng.choice((1, 4, 12, 30))
        self._acks.ask(
            "generate",
            actor=actor.id,
            prompt=tokens,
            seed=seed,
            temperature=settings.temperature,
            top_k=settings.top_k,
            max_tokens=count,
        )
        stream = await self._visor.generate(
            Generate(
                actor=actor.id,
                prompt=tuple(tokens),
                max_tokens=count,
                settings=settings,
                seed=seed,
                ignore_eos=True,
            )
        )
        self._acks.ack("opened", actor=actor.id)
        actor.position, actor.moved = actor.position + len(tokens), True
        beside = rng.choice((None, None, None, self.fork, self.snapshot)), rng.randrange(count)
        async for event in stream:
            self._acks.ack("token", actor=actor.id, at=event.position, token=event.token)
            actor.position = event.position + 1
            if event.index == beside[1] and beside[0] is not None:
                await beside[0](actor)
            if whole is None and rng.random() < 0.01:
                stream.cancel()
        view = await stream.result()
        self._acks.ack("generate", actor=actor.id, turn=view.id, position=view.position)
        actor.position = view.position

    async def snapshot(self, actor: Mine) -> None:
        made = await self._visor.snapshot(Snapshot(actor=actor.id, wait=self._rng.random() < 0.2))
        self._acks.ack(
            "snapshot",
            actor=actor.id,
            seq=made.seq,
            position=made.position,
            digest=made.digest,
        )
        if made.position <= actor.position:
            self._handles[actor.id].append((f"{made.actor_id}@{made.seq}", made.position))

    async def fork(self, actor: Mine) -> None:
        rng = self._rng
        names = [next(self._names) for _ in range(rng.choice((1, 1, 3)))]
        at = rng.choice((actor.position, rng.randint(0, actor.position)))
        self._acks.ask("fork", parent=actor.id, names=names, at=at)
        seeds = tuple(rng.randrange(2**40) for _ in names)
        views = await self._visor.fork(
            Fork(actor=actor.id, count=len(names), names=tuple(names), at=at, seeds=seeds)
        )
        made = [view.record for view in views]
        self._acks.ack("fork", children=[[one.id, one.name, one.seed] for one in made])
        for one in made:
            self._handles[one.id] = [(f"{one.id}@0", one.position)]
            if len(self._mine) < 6:
                self._mine.append(Mine(one.id, one.position))

    async def mutate(self, actor: Mine) -> None:
        rng = self._rng
        if actor.position < 2:
            return
        rule = rng.choice(self._rules)
        params = {{"decay": "alpha", "scale": "factor"}[rule]: rng.choice((0.5, 0.75, 0.25))}
        layers = rng.choice((None, [0], [1]))
        self._acks.ask("mutate", actor=actor.id, rule=rule, params=params, layers=layers)
        mutation = Mutation(
            rule=rule, params=params, layers=None if layers is None else tuple(layers)
        )
        made = await self._visor.mutate(Mutate(actor=actor.id, mutation=mutation))
        self._acks.ack("mutate", actor=actor.id, seq=made.seq)
        actor.moved = True
        self._handles[actor.id].append((f"{made.actor_id}@{made.seq}", made.position))

    async def rollback(self, actor: Mine) -> None:
        rng = self._rng
        to: str | int = rng.randint(max(0, actor.position - 20), actor.position)
        position = int(to)
        if rng.random() < 0.5:
            to, position = rng.choice(self._handles[actor.id])
        self._acks.ask("rollback", actor=actor.id, to=to)
        view = await self._visor.rollback(
            Rollback(actor=actor.id, to=to, rng=rng.choice((Rng.RESEED, Rng.INHERIT)))
        )
        self._acks.ack("rollback", actor=actor.id, seed=view.record.seed)
        actor.position, actor.moved = position, False

    async def move(self, actor: Mine) -> None:
        rng = self._rng
        match rng.randrange(4):
            case 0:
                await self._visor.evict(
                    Evict(source=Tier.GPU, target=rng.choice((Tier.HOST, Tier.NVME)), count=2)
                )
                self._acks.ack("evict")
            case 1:
                self._acks.ask("resume", actor=actor.id)
                await self._visor.resume(Resume(actor=actor.id))
                self._acks.ack("resume", actor=actor.id)
                actor.moved = True
            case 2:
                await self._hibernate(actor, Tier.HOST)
            case _:
                await self._hibernate(actor, Tier.NVME)

    async def down(self, actor: Mine) -> None:
        await self._hibernate(actor, Tier.NVME)

    async def _hibernate(self, actor: Mine, tier: Tier) -> None:
        self._acks.ask("hibernate", actor=actor.id, tier=tier.value)
        view = await self._visor.hibernate(Hibernate(actor=actor.id, tier=tier))
        # One that never had a slot is hibernated as a place in its journal, without an image.
        named = view.record.position not in self._disowned
        image = view.tier is Tier.NVME and actor.moved and named
        self._acks.ack("hibernate", actor=actor.id, image=image)

    async def disown(self, actor: Mine) -> None:
        """Take the name from the image it would wake from, as is done with a damaged one."""
        record = (await self._visor.actor(actor.id)).record
        found = await self._catalog.nearest_image(record.segment, record.position)
        if found is not None:
            self._disowned.add(found[0])
            self._acks.ask("disown", actor=actor.id, position=found[0])
            await self._states.disown(record.segment, *found)
            self._acks.ack("disown", actor=actor.id)

    async def delete(self, actor: Mine) -> None:
        self._acks.ask("delete", actor=actor.id)
        await self._visor.delete(DeleteActor(actor=actor.id))
        self._acks.ack("delete", actor=actor.id)
        self._mine.remove(actor)
