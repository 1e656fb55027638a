"""The reading half of the catalog's twin."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from statevisor.hypervisor.catalog_port import ActorQuery, Standing, VersionQuery, Walk
from statevisor.hypervisor.records import (
    ActorRecord,
    ImageRef,
    OperationRecord,
    SegmentRecord,
    TokenRun,
    TurnRecord,
    VersionRecord,
)
from statevisor.hypervisor.vocab import Op
from statevisor.store.memory_rows import MemoryRows
from statevisor.store.terms import matches


class MemoryReading(MemoryRows):
    """Every question that a `Catalog` answers."""

    async def actor(self, key: str) -> ActorRecord:
        return self._shown(self._live(key))

    async def actors(self, query: ActorQuery) -> tuple[tuple[ActorRecord, ...], bool]:
        found = [
            one.record
            for _, one in sorted(self._actors.items())
            if not one.deleted and _matches(one.record, query)
        ]
        page = found[: query.limit]
        return tuple(self._shown(self._actors[one.id]) for one in page), len(found) > len(page)

    async def recent(self, limit: int) -> tuple[ActorRecord, ...]:
        living = [one.record for one in self._actors.values() if not one.deleted]
        newest = sorted(living, key=lambda one: (one.updated_at, one.id), reverse=True)
        return tuple(self._shown(self._actors[one.id]) for one in newest[:limit])

    async def count_actors(self) -> int:
        return len(self._names)

    async def segment(self, segment: int) -> SegmentRecord:
        return self._history.segment(segment)

    async def path(self, segment: int, limit: int) -> tuple[SegmentRecord, ...]:
        found = [self._history.segment(segment)]
        while found[-1].parent is not None and len(found) < limit:
            found.append(self._history.segment(found[-1].parent))
        return tuple(found)

    async def transcript(self, segment: int, start: int, stop: int) -> tuple[TokenRun, ...]:
        return self._history.transcript(segment, start, stop)

    async def version(self, handle: str) -> VersionRecord:
        return self._version(self._resolve(handle))

    async def version_at(self, segment: int, position: int) -> VersionRecord | None:
        found = self._history.at(segment, position)
        return None if found is None else self._version(found.id)

    async def versions(
        self, actor_id: str, after: int | None, limit: int
    ) -> tuple[tuple[VersionRecord, ...], bool]:
        self._living(actor_id)
        found = [
            one
            for one in self._history.versions.values()
            if one.actor_id == actor_id
            and not one.hidden
            and one.seq > (-1 if after is None else after)
        ]
        return tuple(self._version(one.id) for one in found[:limit]), len(found) > limit

    async def search(self, query: VersionQuery) -> tuple[tuple[VersionRecord, ...], bool]:
        low = (-1, -1)
        if query.after is not None:
            behind = self._resolve(query.after)
            low = (self._history.versions[behind].created_us, behind)
        order = sorted((one.created_us, one.id) for one in self._history.versions.values())
        found = [self._version(number) for at, number in order if (at, number) > low]
        found = [one for one in found if matches(query, one)]
        return tuple(found[: query.limit]), len(found) > query.limit

    async def as_of(self, actor_id: str, at_us: int) -> VersionRecord | None:
        self._living(actor_id)
        heads = [
            one.id
            for one in self._history.versions.values()
            if one.actor_id == actor_id and one.op is not Op.SNAPSHOT and one.created_us <= at_us
        ]
        return self._version(heads[-1]) if heads else None

    async def walk(self, start: str | Sequence[int], direction: str, limit: int) -> Walk:
        queue = {self._resolve(start)} if isinstance(start, str) else set(start)
        up = direction == "ancestors"
        seen: list[int] = []
        edges: dict[tuple[int, int], None] = {}
        while queue and len(seen) < limit:
            here = max(queue) if up else min(queue)
            queue.remove(here)
            seen.append(here)
            for near in self._near(here, direction):
                edges[(near, here) if up else (here, near)] = None
                queue.add(near)
        return Walk(
            nodes=tuple(map(self._version, seen)),
            edges=tuple(
                (self._handle(parent), self._handle(child), self._history.versions[child].op)
                for parent, child in edges
            ),
            rest=tuple(queue),
        )

    async def lineage(
        self, handle: str, direction: str, depth: int, limit: int
    ) -> tuple[tuple[VersionRecord, ...], tuple[tuple[str, str, Op], ...], bool]:
        start = self._resolve(handle)
        nodes, cut = {start: 0}, False
        for wanted in ("ancestors", "descendants"):
            if direction in (wanted, "both"):
                queue = deque([(start, 0)])
                while queue:
                    here, hops = queue.popleft()
                    for near in self._near(here, wanted):
                        if near in nodes:
                            continue
                        if hops == depth or len(nodes) == limit:
                            cut = True
                            continue
                        nodes[near] = hops + 1
                        queue.append((near, hops + 1))
        records = {number: self._version(number) for number in nodes}
        edges = tuple(
            (records[parent].handle, records[child].handle, records[child].op)
            for child in nodes
            for parent in dict.fromkeys(self._history.versions[child].parents)
            if parent in nodes
        )
        return tuple(records.values()), edges, cut

    async def common_ancestor(self, a: str, b: str) -> VersionRecord | None:
        older, newer = sorted((self._resolve(a), self._resolve(b)))
        mine, theirs = self._reach(older), self._reach(newer)
        shared = [
            one
            for one in self._history.versions.values()
            if one.id <= older
            and one.position <= min(theirs.get(one.segment, -1), mine.get(one.segment, -1))
        ]
        found = max(shared, key=lambda one: (one.segment, one.position, one.id), default=None)
        return None if found is None else self._version(found.id)

    async def is_ancestor(self, a: str, b: str) -> bool:
        found = await self.common_ancestor(a, b)
        return found is not None and found == self._version(self._resolve(a))

    async def blame(self, handle: str, layer: int) -> VersionRecord | None:
        version = self._history.versions[self._resolve(handle)]
        for here, _ in self._history.path(version.segment, version.position):
            layers = self._history.touched.get(here.id, ())
            if layers is None or layer in layers:
                return next(
                    self._version(one.id)
                    for one in self._history.versions.values()
                    if one.segment == here.id and one.op is Op.MUTATE
                )
        return None

    async def nearest_image(self, segment: int, position: int) -> tuple[int, ImageRef] | None:
        found = self._history.nearest(segment, position)
        return None if found is None else (found[0], self._images[found[1]])

    async def image(self, digest: str) -> ImageRef | None:
        return None if digest in self._orphans else self._images.get(digest)

    async def image_at(self, segment: int, position: int) -> ImageRef | None:
        if self._history.find_home(segment, position) is None:
            return None
        digest = self._history.checkpoints.get((self._history.place(segment, position), position))
        return None if digest is None else self._images[digest]

    async def standing(self, segment: int, position: int, absorbed: int) -> Standing:
        image = await self.image_at(segment, position)
        if image is not None or absorbed >= position:
            return Standing(image, ())
        runs = await self.transcript(segment, absorbed, position)
        return Standing(None, tuple(token for run in runs for token in run.tokens))

    async def live_images(self) -> tuple[ImageRef, ...]:
        return tuple(one for _, one in sorted(self._images.items()))

    async def turn(self, turn_id: str) -> TurnRecord:
        return self._turn(turn_id)

    async def operation(self, key: str) -> OperationRecord | None:
        return self._known(key)


def _matches(actor: ActorRecord, query: ActorQuery) -> bool:
    if query.label is not None:
        key, value = query.label
        if key not in actor.labels or (value is not None and actor.labels[key] != value):
            return False
    return (
        (query.model is None or actor.model == query.model)
        and (query.q is None or query.q.lower() in actor.name.lower())
        and (query.ids is None or actor.id in query.ids)
        and (query.exclude is None or actor.id not in query.exclude)
        and (query.after is None or actor.id > query.after)
    )
