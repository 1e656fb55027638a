"""What can be asked of the catalog: each call is one snapshot, on a reader's thread.

What a method promises stands in `hypervisor/catalog_port.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import Connection

from statevisor.hypervisor.catalog_port import (
    ActorQuery,
    Checkpoint,
    Finding,
    Rubbish,
    Standing,
    VersionQuery,
    Walk,
)
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
from statevisor.store import (
    actors,
    ancestry,
    checkpoints,
    keeping,
    lineage,
    operations,
    rosters,
    rowcheck,
    search,
    segments,
    transcripts,
    turns,
    versions,
    walks,
)
from statevisor.store.extents import Extents
from statevisor.store.readers import Readers
from statevisor.store.tails import Tails


class CatalogReads:
    """The reading part of a `Catalog`; nothing is cached but the tokens of open turns."""

    def __init__(
        self,
        readers: Readers,
        tails: Tails,
        *,
        now_us: Callable[[], int],
        aged_us: Callable[[], int],
        keep_keys_us: int,
    ) -> None:
        self._readers = readers
        self._tails = tails
        self._now_us = now_us
        self._aged_us = aged_us
        self._keep_keys_us = keep_keys_us

    async def actor(self, key: str) -> ActorRecord:
        ends = self._tails.ends()
        return (await self._readers.run(actors.get, key)).shown(ends)

    async def actors(self, query: ActorQuery) -> tuple[tuple[ActorRecord, ...], bool]:
        ends = self._tails.ends()
        found, more = await self._readers.run(rosters.page, query)
        return tuple(one.shown(ends) for one in found), more

    async def recent(self, limit: int) -> tuple[ActorRecord, ...]:
        ends = self._tails.ends()
        found = await self._readers.run(rosters.recent, limit)
        return tuple(one.shown(ends) for one in found)

    async def count_actors(self) -> int:
        return await self._readers.run(actors.count)

    async def segment(self, segment: int) -> SegmentRecord:
        return (await self._readers.run(segments.get, segment)).record

    async def path(self, segment: int, limit: int) -> tuple[SegmentRecord, ...]:
        return await self._readers.run(segments.up, segment, limit)

    async def transcript(self, segment: int, start: int, stop: int) -> tuple[TokenRun, ...]:
        tail = self._tails.seen(segment)
        return await self._readers.run(transcripts.read, segment, start, stop, tail)

    async def version(self, handle: str) -> VersionRecord:
        def read(conn: Connection) -> VersionRecord:
            return versions.one(conn, versions.resolve(conn, handle))

        return await self._readers.run(read)

    async def version_at(self, segment: int, position: int) -> VersionRecord | None:
        def read(conn: Connection) -> VersionRecord | None:
            home = segments.find_home(conn, segment, position)
            return None if home is None else _shown(conn, versions.at(conn, home, position))

        return await self._readers.run(read)

    async def versions(
        self, actor_id: str, after: int | None, limit: int
    ) -> tuple[tuple[VersionRecord, ...], bool]:
        def read(conn: Connection) -> tuple[tuple[VersionRecord, ...], bool]:
            actors.get(conn, actor_id)
            return versions.page(conn, actor_id, after, limit)

        return await self._readers.run(read)

    async def search(self, query: VersionQuery) -> tuple[tuple[VersionRecord, ...], bool]:
        return await self._readers.run(search.page, query)

    async def as_of(self, actor_id: str, at_us: int) -> VersionRecord | None:
        def read(conn: Connection) -> VersionRecord | None:
            actors.get(conn, actor_id)
            return _shown(conn, versions.as_of(conn, actor_id, at_us))

        return await self._readers.run(read)

    async def walk(self, start: str | Sequence[int], direction: str, limit: int) -> Walk:
        return await self._readers.run(walks.walk, start, direction, limit)

    async def lineage(
        self, handle: str, direction: str, depth: int, limit: int
    ) -> tuple[tuple[VersionRecord, ...], tuple[tuple[str, str, Op], ...], bool]:
        return await self._readers.run(lineage.graph, handle, direction, depth, limit)

    async def common_ancestor(self, a: str, b: str) -> VersionRecord | None:
        return await self._readers.run(lambda conn: _shown(conn, ancestry.common(conn, a, b)))

    async def is_ancestor(self, a: str, b: str) -> bool:
        return await self._readers.run(ancestry.is_ancestor, a, b)

    async def blame(self, handle: str, layer: int) -> VersionRecord | None:
        return await self._readers.run(
            lambda conn: _shown(conn, lineage.blame(conn, handle, layer))
        )

    async def nearest_image(self, segment: int, position: int) -> tuple[int, ImageRef] | None:
        return await self._readers.run(checkpoints.nearest, segment, position)

    async def image(self, digest: str) -> ImageRef | None:
        return await self._readers.run(checkpoints.get, digest)

    async def image_at(self, segment: int, position: int) -> ImageRef | None:
        return await self._readers.run(checkpoints.at, segment, position)

    async def standing(self, segment: int, position: int, absorbed: int) -> Standing:
        tail = self._tails.seen(segment)

        def read(conn: Connection) -> Standing:
            image = checkpoints.at(conn, segment, position)
            if image is not None or absorbed >= position:
                return Standing(image, ())
            runs = transcripts.read(conn, segment, absorbed, position, tail)
            return Standing(None, tuple(token for run in runs for token in run.tokens))

        return await self._readers.run(read)

    async def live_images(self) -> tuple[ImageRef, ...]:
        return await self._readers.run(checkpoints.live)

    async def live_extents(self) -> Extents:
        """Where every live image lies, for the free map at start: a small part of their rows."""
        return await self._readers.run(checkpoints.extents)

    async def checkpoints(self, after: int, limit: int) -> tuple[Checkpoint, ...]:
        return await self._readers.run(keeping.page, after, limit)

    async def anchors(self) -> Mapping[tuple[int, int], str]:
        return await self._readers.run(keeping.anchors)

    async def rubbish(self, *, grace_us: int) -> Rubbish:
        return await self._readers.run(keeping.rubbish, self._now_us() - grace_us)

    async def check(self) -> tuple[Finding, ...]:
        return await self._readers.run(rowcheck.check)

    async def turn(self, turn_id: str) -> TurnRecord:
        ends = self._tails.ends()
        return turns.shown(await self._readers.run(turns.get, turn_id), ends)

    async def operation(self, key: str) -> OperationRecord | None:
        oldest = self._aged_us() - self._keep_keys_us
        return await self._readers.run(operations.get, key, oldest)

    async def open_turns(self) -> tuple[TurnRecord, ...]:
        ends = self._tails.ends()
        return tuple(turns.shown(one, ends) for one in await self._readers.run(turns.open_turns))


def _shown(conn: Connection, number: int | None) -> VersionRecord | None:
    return None if number is None else versions.one(conn, number)
