"""What gc and fsck ask of the catalog's twin."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from statevisor.hypervisor.catalog_port import Checkpoint, Finding, Rubbish
from statevisor.hypervisor.records import ImageRef
from statevisor.hypervisor.retention import Keep
from statevisor.hypervisor.vocab import Op
from statevisor.store.memory_reading import MemoryReading


class MemoryKeeping(MemoryReading):
    """Questions and changes of housekeeping, as a `Catalog` promises them."""

    async def checkpoints(self, after: int, limit: int) -> tuple[Checkpoint, ...]:
        kept = self._history.checkpoints
        wanted = sorted({segment for segment, _ in kept if segment > after})[:limit]
        return tuple(
            self._checkpoint(segment, position)
            for segment, position in sorted(kept)
            if segment in wanted
        )

    async def anchors(self) -> Mapping[tuple[int, int], str]:
        found: dict[tuple[int, int], str] = {}
        for actor in self._actors.values():
            here = self._history.segment(actor.record.segment)
            if actor.deleted or here.parent is None or here.rooted:
                continue
            for below, top in self._history.path(here.parent, here.position):
                hits = [at for (kept, at) in self._history.checkpoints if kept == below.id]
                near = max((at for at in hits if at <= top), default=None)
                if near is not None:
                    found[below.id, near] = Keep.BASE.value
                if near is not None or below.rooted:
                    break
        for one in self._history.versions.values():
            if (one.op is Op.SNAPSHOT and not one.hidden) or one.id in self._tags.values():
                place = self._history.place(one.segment, one.position)
                found[place, one.position] = Keep.NAMED.value
        return found

    async def rubbish(self, *, grace_us: int) -> Rubbish:
        gone, history = self._released(), self._history
        runs = [run for at, runs in history.runs.items() if self._owner(at) in gone for run in runs]
        before = self._now_us() - grace_us
        ripe = [digest for digest, since in self._orphans.items() if since < before]
        return Rubbish(
            actors=tuple(sorted(gone)),
            versions=sum(one.actor_id in gone for one in history.versions.values()),
            tokens=sum(len(tokens) for _, _, tokens in runs),
            orphans=len(self._orphans),
            orphan_bytes=sum(self._images[digest].length for digest in self._orphans),
            ripe=len(ripe),
            ripe_bytes=sum(self._images[digest].length for digest in ripe),
        )

    async def forget(self, places: Sequence[tuple[int, int]]) -> None:
        for place in places:
            here = self._history.segment(place[0])
            if here.rooted and here.position == place[1]:
                continue
            digest = self._history.checkpoints.pop(place, None)
            self._named_us.pop(place, None)
            if digest is not None and digest not in self._history.checkpoints.values():
                self._orphans[digest] = self._now_us()
        await asyncio.sleep(0)

    async def check(self) -> tuple[Finding, ...]:
        return tuple(
            Finding(
                kind="version_beyond",
                detail=f"position {one.position} lies beyond the transcript",
                advice="This is a fault of the twin.",
                version=f"{one.actor_id}@{one.seq}",
            )
            for one in self._history.versions.values()
            if one.position > self._history.end(one.segment)
        )

    def _owner(self, segment: int) -> str | None:
        if segment in self._history.gone:
            return None
        return self._history.segment(segment).actor_id

    def _released(self) -> set[str]:
        """Deleted actors that sweeps would take out, one after the other."""
        gone: set[str] = set()
        deleted = {key for key, one in self._actors.items() if one.deleted}
        while fresh := {key for key in deleted - gone if not self._history.needed(key, gone)}:
            gone |= fresh
        return gone

    def _checkpoint(self, segment: int, position: int) -> Checkpoint:
        here = self._history.segment(segment)
        record = self._actors[here.actor_id].record
        image: ImageRef = self._images[self._history.checkpoints[segment, position]]
        return Checkpoint(
            segment=segment,
            position=position,
            image=image,
            actor_id=record.id,
            model=record.model,
            rooted=here.rooted and here.position == position,
            pinned=record.pinned,
            created_at=self._named_us[segment, position],
        )
