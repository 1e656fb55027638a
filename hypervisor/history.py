"""Versions as states: read them, write them out, compare them, prove them.

A version is a row; whether an image of it exists is a matter of cost. Whatever is asked of a
version without one is derived from the nearest image before it, in a throw-away slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from statevisor.hypervisor import lineage
from statevisor.hypervisor.catalog_port import Catalog, Origin
from statevisor.hypervisor.commands import DiffView, Place, VerifyView
from statevisor.hypervisor.errors import InvalidRequest
from statevisor.hypervisor.image_ports import ImageMeta, Images
from statevisor.hypervisor.lineage import Path
from statevisor.hypervisor.ports import Guest, Mutation
from statevisor.hypervisor.records import ActorRecord, ImageRef, SegmentRecord, VersionRecord
from statevisor.hypervisor.residency import Residency
from statevisor.hypervisor.vocab import Op

_TOKENS_SHOWN = 4096
#: Segments of a path that are read at a time.
_PART = 64


class Paths:
    """Paths of segments; a segment never changes, so they are kept."""

    def __init__(self, catalog: Catalog, limit: int = 100_000) -> None:
        self._catalog = catalog
        self._limit = limit
        self._known: dict[int, SegmentRecord] = {}

    def begun(self, actor: ActorRecord) -> None:
        """An actor was created: its history begins with a segment of its own."""
        self._know(
            [
                SegmentRecord(
                    id=actor.segment,
                    actor_id=actor.id,
                    parent=None,
                    position=0,
                    rooted=False,
                    depth=0,
                )
            ]
        )

    async def of(self, segment: int) -> Path:
        """The segments from the root to this one."""
        path: list[SegmentRecord] = []
        at: int | None = segment
        while at is not None:
            record = self._known.get(at)
            if record is None:
                found = await self._catalog.path(at, _PART)
                self._know(found)
                record = found[0]
            path.append(record)
            at = record.parent
        return tuple(reversed(path))

    def _know(self, found: Sequence[SegmentRecord]) -> None:
        if len(self._known) >= self._limit:
            self._known.clear()
        self._known |= {one.id: one for one in found}


class History:
    """Versions of the actors of one guest."""

    def __init__(
        self, guest: Guest, residency: Residency, catalog: Catalog, images: Images, paths: Paths
    ) -> None:
        self._guest = guest
        self._residency = residency
        self._catalog = catalog
        self._images = images
        self._paths = paths

    async def origin(self, actor_id: str, path: Path, length: int, base: int, at: Place) -> Origin:
        """A place of an actor's past as the origin of a new segment.

        Raises: InvalidRequest, VersionNotFound.
        """
        if isinstance(at, int):
            if at < base:
                raise InvalidRequest(
                    f"position {at} is before the beginning of this history",
                    hint=f"It covers {base}..{length}.",
                )
            return lineage.origin(path, length, at)
        version = await self._catalog.version(at)
        if version.actor_id != actor_id and not lineage.covers(
            path, version.segment, version.position
        ):
            raise InvalidRequest(
                f"{version.handle} is not in this actor's history",
                hint=f"Fork {version.actor} instead.",
            )
        # by id: the version of a deleted actor is still part of its descendants' history
        handle = f"{version.actor_id}@{version.seq}"
        return Origin(segment=version.segment, position=version.position, handle=handle)

    async def row(self, version: VersionRecord) -> tuple[bytearray, int]:
        """A version's row, and how many tokens were replayed for it."""
        ref = await self._catalog.image_at(version.segment, version.position)
        if ref is not None:
            row, meta = await self._residency.states.read(ref)
            # an import may have brought several tokens that its state has not absorbed
            if meta.absorbed >= version.position - 1:
                return row, 0
        row, _, replayed = await self._derive(version.segment, version.position)
        return row, replayed

    async def image(self, version: VersionRecord) -> ImageRef:
        """A version's image, written now if there is none yet."""
        ref = await self._catalog.image_at(version.segment, version.position)
        if ref is not None:
            return ref
        row, absorbed, _ = await self._derive(version.segment, version.position)
        meta = await self._meta(version.segment, version.position, absorbed)
        return await self._residency.states.keep(version.segment, version.position, row, meta)

    async def export(self, version: VersionRecord) -> bytes:
        """A version as one safetensors file."""
        return await self._images.export(await self.image(version))

    def can_derive(self, version: VersionRecord) -> bool:
        """Whether this guest's build made it and can do so again; another's bits are its own."""
        mine = self._guest.fingerprints
        return version.build is None or (version.build == mine.build and mine.exact)

    async def verify(self, version: VersionRecord) -> VerifyView:
        """Derive a version again from what came before it and compare digests.

        A mutation runs its rule again; an import is read and checked; everything else is replayed
        from an image strictly before it, or from the empty state.
        """
        segment = (await self._paths.of(version.segment))[-1]
        root = await self._root(segment, version)
        if root is not None and root.op is Op.IMPORT:
            ref = await self.image(root)
            row, meta = await self._residency.states.read(ref)
            digest = await self._digest(row, meta)
            return VerifyView(
                ok=digest == ref.digest, checked=0, digest=digest, expected=ref.digest
            )
        if root is not None:
            row, checked = await self._mutated(segment, root)
        else:
            row, _, checked = await self._derive(
                version.segment, version.position, before=version.position - 1
            )
        rest = max(version.position - 1, 0)
        meta = await self._meta(version.segment, version.position, rest)
        digest = await self._digest(row, meta)
        expected = version.digest
        if expected is None:
            nearest, _ = await self.row(version)
            expected = await self._digest(nearest, meta)
        return VerifyView(ok=digest == expected, checked=checked, digest=digest, expected=expected)

    async def _root(self, segment: SegmentRecord, version: VersionRecord) -> VersionRecord | None:
        """The mutation or import whose state the version names, if it stands right at one."""
        if not (segment.rooted and segment.position == version.position):
            return None
        at = version
        while at.op not in (Op.MUTATE, Op.IMPORT):
            at = await self._catalog.version(at.parents[0])
        return at

    async def _mutated(
        self, segment: SegmentRecord, version: VersionRecord
    ) -> tuple[bytearray, int]:
        assert segment.parent is not None
        assert version.rule is not None
        own, _, checked = await self._derive(
            segment.parent, segment.position, before=segment.position - 1
        )
        mutation = Mutation(
            rule=version.rule,
            params=version.params,
            families=_tuple(version.select.get("families")),
            layers=_tuple(version.select.get("layers")),
            heads=_tuple(version.select.get("heads")),
        )
        rows = [own, *[(await self.row(other))[0] for other in await self._merged(version)]]
        views = [memoryview(row) for row in rows]
        return bytearray(await asyncio.to_thread(self._guest.mutate, mutation, views)), checked

    async def _merged(self, version: VersionRecord) -> tuple[VersionRecord, ...]:
        """The versions that a mutation took in beside its actor's own state.

        By its edges, not by its parameters: a tag moves, an actor is renamed or deleted.
        """
        key = f"{version.actor_id}@{version.seq}"
        nodes, _, _ = await self._catalog.lineage(key, "ancestors", 1, 1 + len(version.parents))
        known = {node.handle: node for node in nodes}
        return tuple(known[handle] for handle in version.parents[1:])

    async def parents(self, mutation: Mutation) -> tuple[VersionRecord, ...]:
        """The versions that a rule's parameters name, in order."""
        handles = [*mutation.params.get("others", ())]
        if "from" in mutation.params:
            handles.append(mutation.params["from"])
        if not all(isinstance(handle, str) for handle in handles):
            raise InvalidRequest("`others` and `from` name versions by handle or tag")
        return tuple([await self._catalog.version(handle) for handle in handles])

    async def diff(self, a: VersionRecord, b: VersionRecord) -> DiffView:
        """Compare two versions: where their tokens part and how far the states are apart."""
        path_a, path_b = await self._paths.of(a.segment), await self._paths.of(b.segment)
        shared = shared_tokens(path_a, a.position, path_b, b.position)
        tokens = self._residency.states.tokens
        tail_a = await tokens(a.segment, shared, min(a.position, shared + _TOKENS_SHOWN))
        tail_b = await tokens(b.segment, shared, min(b.position, shared + _TOKENS_SHOWN))
        row_a, row_b = (await self.row(a))[0], (await self.row(b))[0]
        families = await asyncio.to_thread(self._guest.diff, memoryview(row_a), memoryview(row_b))
        ancestor = await self._catalog.common_ancestor(a.handle, b.handle)
        return DiffView(
            a=a,
            b=b,
            common_ancestor=ancestor.handle if ancestor else None,
            tokens_a=tail_a,
            tokens_b=tail_b,
            shared_tokens=shared,
            families=families,
        )

    # -- parts -----------------------------------------------------------------------------------
    async def _derive(
        self, segment: int, position: int, *, before: int | None = None
    ) -> tuple[bytearray, int, int]:
        if before is not None:
            # no replay begins before a state that no token made
            path = await self._paths.of(segment)
            roots = [s.position for s in path if s.rooted and s.position <= position]
            before = max([0, before, *roots])
        owner = f"derive-{segment}-{position}"
        return await self._residency.derive(owner, segment, position, before=before)

    async def _meta(self, segment: int, position: int, absorbed: int) -> ImageMeta:
        pending = await self._residency.states.tokens(segment, absorbed, position)
        return self._residency.states.meta(position, absorbed, pending)

    async def _digest(self, row: bytearray, meta: ImageMeta) -> str:
        return await asyncio.to_thread(self._images.digest, memoryview(row), meta)


def shared_tokens(path_a: Path, end_a: int, path_b: Path, end_b: int) -> int:
    """How many tokens two transcripts have in common by ancestry."""
    shared, limit = 0, min(end_a, end_b)
    for index, (a, b) in enumerate(zip(path_a, path_b, strict=False)):
        if a.id != b.id:
            break
        ends = [path[index + 1].position for path in (path_a, path_b) if index + 1 < len(path)]
        shared = min([limit, *ends])
    return shared


def _tuple(value: Sequence[Any] | None) -> tuple[Any, ...] | None:
    return None if value is None else tuple(value)
