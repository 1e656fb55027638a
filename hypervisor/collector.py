"""gc: what nothing needs any more is taken out, the rows first, then the bytes.

Marked are deleted actors without living descendants, images that the rule of `retention` finds
surplus, and extents of this process that never got a name. Nothing younger than the grace goes: an
image that was written a moment ago may be about to be named, and whoever has just read where an
image lies may be about to read it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter

from statevisor.hypervisor.catalog_port import Catalog, Checkpoint, Rubbish
from statevisor.hypervisor.commands import Gc, GcLine, GcView
from statevisor.hypervisor.image_ports import Extent, Images
from statevisor.hypervisor.layout import Fingerprints
from statevisor.hypervisor.ports import Clock
from statevisor.hypervisor.records import ImageRef
from statevisor.hypervisor.retention import DENSE, Keep, surplus
from statevisor.hypervisor.steady import SteadyTime

_SEGMENTS = 32  #: looked at between two turns of the event loop
_PLACES = 64  #: forgotten in one transaction
DELETED, SURPLUS, UNNAMED = "deleted", "surplus", "unnamed"


@dataclass(slots=True)
class _Fates:
    """Every place's fate, and every image's: it stays if one of its places does."""

    goes: list[tuple[int, int]] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    of: dict[str, str] = field(default_factory=dict)

    def add(self, one: Checkpoint, fate: str) -> None:
        digest = one.image.digest
        self.sizes[digest] = one.image.length
        if self.of.get(digest, DELETED) in (DELETED, SURPLUS):
            self.of[digest] = fate
        if fate == SURPLUS:
            self.goes.append((one.segment, one.position))

    def lines(self) -> dict[str, GcLine]:
        """How many images have each fate. Slow where there are many."""
        counts, sizes = Counter[str](), Counter[str]()
        for digest, fate in self.of.items():
            counts[fate] += 1
            sizes[fate] += self.sizes[digest]
        return {
            fate: GcLine(reason=fate, images=count, nbytes=sizes[fate])
            for fate, count in counts.items()
        }


class Collector:
    """Takes out what nothing needs; one run at a time."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        images: Images,
        prints: Mapping[str, Fingerprints],
        clock: Clock,
        dense: int = DENSE,
    ) -> None:
        self._catalog = catalog
        self._images = images
        self._prints = prints
        self._clock = clock
        self._time = SteadyTime(clock)
        self._dense = dense
        #: Extents without a name: which image it is, and monotonic since when.
        self._suspects: dict[Extent, tuple[int, float]] = {}

    async def run(self, command: Gc) -> GcView:
        """One collection. Raises: Unavailable."""
        # a clock that was set forward has made nothing older
        grace_us = int(command.grace_s * 1_000_000) + self._time.ahead_us()
        rubbish = await self._catalog.rubbish(grace_us=grace_us)
        fates = await self._fates(frozenset(rubbish.actors), grace_us)
        freed: list[ImageRef] = []
        left = rubbish
        if not command.dry_run:
            for at in range(0, len(fates.goes), _PLACES):
                await self._catalog.forget(fates.goes[at : at + _PLACES])
            freed, left = await self._sweep(grace_us)
        unnamed = await self._unnamed(command.grace_s)
        for extent in () if command.dry_run else unnamed:
            self._images.reclaim(extent)
            del self._suspects[extent]
        lines = await asyncio.to_thread(fates.lines)
        goes = _chosen(lines, DELETED, SURPLUS)
        if command.dry_run:  # what would wait, were it done
            left = replace(
                rubbish,
                orphans=rubbish.orphans - rubbish.ripe + sum(line.images for line in goes),
                orphan_bytes=rubbish.orphan_bytes
                - rubbish.ripe_bytes
                + sum(line.nbytes for line in goes),
            )
        return GcView(
            dry_run=command.dry_run,
            actors=len(rubbish.actors),
            versions=rubbish.versions,
            tokens=rubbish.tokens,
            removed=(*goes, *_unnamed_line(unnamed)),
            kept=_chosen(lines, *(keep.value for keep in Keep)),
            freed_images=rubbish.ripe if command.dry_run else len(freed),
            freed_bytes=rubbish.ripe_bytes if command.dry_run else sum(r.length for r in freed),
            waiting_images=left.orphans,
            waiting_bytes=left.orphan_bytes,
        )

    async def _sweep(self, grace_us: int) -> tuple[list[ImageRef], Rubbish]:
        """Small transactions until nothing is left to take out; bytes go behind their rows."""
        freed: list[ImageRef] = []
        before: int | None = None
        while True:
            for ref in await self._catalog.sweep(grace_us=grace_us):
                self._images.free(ref)
                freed.append(ref)
            left = await self._catalog.rubbish(grace_us=grace_us)
            if not left.actors or len(left.actors) == before:
                return freed, left
            before = len(left.actors)

    async def _fates(self, gone: frozenset[str], grace_us: int) -> _Fates:
        young = self._clock.now_us() - grace_us
        anchors = await self._catalog.anchors()
        fates = _Fates()
        after = 0
        while page := await self._catalog.checkpoints(after, _SEGMENTS):
            after = page[-1].segment
            for _, group in groupby(page, key=attrgetter("segment")):
                self._judge(list(group), fates, gone, anchors, young)
        return fates

    def _judge(
        self,
        segment: list[Checkpoint],
        fates: _Fates,
        gone: frozenset[str],
        anchors: Mapping[tuple[int, int], str],
        young: int,
    ) -> None:
        """The images of one segment, oldest first."""
        if segment[0].actor_id in gone:
            for one in segment:
                fates.add(one, DELETED)
            return
        fixed = {one.position: why for one in segment if (why := self._why(one, anchors, young))}
        positions = [one.position for one in segment]
        too_many = surplus(positions, fixed, self._dense)
        for one in segment:
            near = positions[-1] - one.position <= self._dense
            rule = Keep.RECENT.value if near else Keep.SPARSE.value
            chosen = SURPLUS if one.position in too_many else rule
            fates.add(one, fixed.get(one.position, chosen))

    def _why(
        self, one: Checkpoint, anchors: Mapping[tuple[int, int], str], young: int
    ) -> str | None:
        """Why an image stays whatever the rule says."""
        if one.rooted:
            return Keep.ROOTED.value
        if (one.segment, one.position) in anchors:
            return anchors[one.segment, one.position]
        if one.pinned:
            return Keep.PINNED.value
        mine, image = self._prints.get(one.model), one.image
        made = Fingerprints(layout=image.layout, weights=image.weights, build=image.build)
        if mine != made or not made.exact:
            return Keep.BUILD.value
        return Keep.YOUNG.value if one.created_at > young else None

    async def _unnamed(self, grace_s: float) -> list[Extent]:
        """Extents that had no name at each look for longer than the grace."""
        now = self._clock.monotonic()
        # In this order: what is named in between is not taken for unnamed.
        used = self._images.extents()
        named = await self._catalog.live_images()
        # On a thread: there may be a million of each.
        unnamed = await asyncio.to_thread(_without, used, named)
        # a place that was given back and written anew holds another image, which is young
        self._suspects = {
            extent: known if known is not None and known[0] == birth else (birth, now)
            for extent in unnamed
            for birth in (self._images.birth(extent),)
            for known in (self._suspects.get(extent),)
        }
        return [extent for extent, (_, since) in self._suspects.items() if since <= now - grace_s]


def _chosen(lines: Mapping[str, GcLine], *fates: str) -> tuple[GcLine, ...]:
    return tuple(lines[fate] for fate in fates if fate in lines)


def _without(used: frozenset[Extent], named: Iterable[ImageRef]) -> frozenset[Extent]:
    return used.difference(Extent(ref.slab, ref.offset, ref.length) for ref in named)


def _unnamed_line(extents: list[Extent]) -> Iterator[GcLine]:
    if extents:
        total = sum(extent.length for extent in extents)
        yield GcLine(reason=UNNAMED, images=len(extents), nbytes=total)
