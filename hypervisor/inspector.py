"""fsck of a running server: every row is compared, every named image is read bit by bit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import replace

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.catalog_port import ActorQuery, Catalog, Checkpoint, Finding
from statevisor.hypervisor.commands import Fsck, FsckView
from statevisor.hypervisor.errors import (
    ActorBusy,
    ImageCorrupt,
    IncompatibleImage,
    NotFound,
    StatevisorError,
)
from statevisor.hypervisor.image_ports import Images
from statevisor.hypervisor.lifecycle import Power
from statevisor.hypervisor.records import ActorRecord, ImageRef, VersionRecord
from statevisor.hypervisor.roster import Roster

_SEGMENTS = 64  #: whose images are looked up in one read
IMAGE_DAMAGED, ROOT_DAMAGED, NOT_DERIVED = "image_damaged", "root_damaged", "not_derived"
DROP = "A repair drops its row: the journal makes the state again."
REPLAY = "Journal and image tell two stories: export what matters, then restore a backup."
QUARANTINE = (
    "No journal leads to this state. A repair quarantines the actors that cannot wake without it; "
    "roll them back, or restore a backup."
)


class Inspector:
    """Looks for damage, and repairs what can be made again. No image may be freed meanwhile."""

    def __init__(self, *, roster: Roster, catalog: Catalog, images: Images) -> None:
        self._roster = roster
        self._catalog = catalog
        self._images = images

    async def run(self, command: Fsck) -> FsckView:
        """One check of everything. Raises: Unavailable."""
        findings = list(await self._catalog.check())
        sizes: dict[str, int] = {}
        read: dict[str, int | str] = {}  # what position an image is of, or what is wrong with it
        damaged: dict[Checkpoint, str] = {}
        after = 0
        while page := await self._catalog.checkpoints(after, _SEGMENTS):
            after = page[-1].segment
            for one in page:
                digest = one.image.digest
                if digest not in read:
                    sizes[digest] = one.image.nbytes
                    read[digest] = await self._read(one.image)
                fault = misplaced(one, read[digest])
                if fault is not None:
                    damaged[one] = fault
        rescued = command.repair and await self._repair(damaged)
        findings += [
            replace(finding(one, fault), repaired=rescued if one.rooted else command.repair)
            for one, fault in damaged.items()
        ]
        derived = 0
        if command.replay:
            derived, differing = await self._derive({one.image.digest for one in damaged})
            findings += differing
        return FsckView(
            ok=all(one.repaired for one in findings),
            images=len(sizes),
            nbytes=sum(sizes.values()),
            derived=derived,
            findings=tuple(findings),
        )

    async def _read(self, ref: ImageRef) -> int | str:
        try:
            return (await self._images.verify(ref)).position
        except (ImageCorrupt, IncompatibleImage) as error:
            return error.detail

    async def _derive(self, damaged: Collection[str]) -> tuple[int, list[Finding]]:
        """Make the living actors' versions again that have an image, and compare digests."""
        derived = 0
        found: list[Finding] = []
        async for version in self._versions():
            if version.digest is None or version.digest in damaged:
                continue
            record = await self._catalog.actor(version.actor_id)
            history = self._roster.history(record)
            if not history.can_derive(version):
                continue
            try:
                told = await history.verify(version)
            except StatevisorError as error:
                detail, ok = error.detail, False
            else:
                detail, ok = f"derived {told.digest}, kept is {told.expected}", told.ok
            derived += 1
            if not ok:
                found.append(
                    Finding(
                        kind=NOT_DERIVED,
                        detail=detail,
                        advice=REPLAY,
                        actor=version.actor_id,
                        version=f"{version.actor_id}@{version.seq}",
                    )
                )
        return derived, found

    async def _versions(self) -> AsyncIterator[VersionRecord]:
        """Versions of the living actors whose guest is loaded."""
        async for record in self._actors():
            seq: int | None = None
            more = record.model in self._roster.batchers
            while more:
                try:
                    page, more = await self._catalog.versions(record.id, seq, 200)
                except NotFound:  # deleted meanwhile
                    break
                for version in page:
                    seq = version.seq
                    yield version

    async def _actors(self) -> AsyncIterator[ActorRecord]:
        after: str | None = None
        more = True
        while more:
            records, more = await self._catalog.actors(ActorQuery(after=after, limit=200))
            for record in records:
                after = record.id
                yield record

    async def _repair(self, damaged: Collection[Checkpoint]) -> bool:
        """Whether no actor was too busy to be looked after."""
        await self._catalog.forget([(one.segment, one.position) for one in damaged])
        roots = {one.image.digest for one in damaged if one.rooted}
        rescued = True
        if roots:
            async for record in self._actors():
                if not record.quarantine and record.model in self._roster.batchers:
                    rescued &= await self._rescue(record, roots)
        return rescued

    async def _rescue(self, record: ActorRecord, roots: Collection[str]) -> bool:
        """Give an actor that cannot wake any more a new image if it is awake, or quarantine it."""
        try:
            actor = await self._roster.find(record.id)
            await self._look_after(actor, roots)
        except NotFound:  # deleted meanwhile
            return True
        except ActorBusy:
            return False
        return True

    async def _look_after(self, actor: Actor, roots: Collection[str]) -> None:
        async with actor.mailbox.turn():
            if actor.power not in (Power.IDLE, Power.HIBERNATED):
                return
            found = await self._catalog.nearest_image(actor.segment, actor.record.position)
            if found is None or found[1].digest not in roots:
                return
            residency = self._roster.residency(actor)
            if actor.power is Power.HIBERNATED and residency.frames.get(actor.id) is not None:
                await residency.resume(actor)
            if actor.power is Power.IDLE:
                await self._rewrite(actor)
            else:
                await residency.poison(actor, f"its image {found[1].digest} is damaged")

    async def _rewrite(self, actor: Actor) -> None:
        residency, position = self._roster.residency(actor), actor.record.position
        row = await residency.row(actor)
        pending = await residency.states.tokens(actor.segment, actor.absorbed, position)
        meta = residency.states.meta(position, actor.absorbed, pending)
        image = await self._images.put(memoryview(row), meta)
        await self._catalog.add_image(actor.segment, position, image)


def misplaced(one: Checkpoint, read: int | str) -> str | None:
    """What is wrong with an image at its place: damage, or another position's state."""
    if isinstance(read, str) or read == one.position:
        return read if isinstance(read, str) else None
    return f"it is the state of position {read}"


def finding(one: Checkpoint, fault: str) -> Finding:
    """What to tell of a damaged image."""
    return Finding(
        kind=ROOT_DAMAGED if one.rooted else IMAGE_DAMAGED,
        detail=f"image {one.image.digest} at position {one.position}: {fault}",
        advice=QUARANTINE if one.rooted else DROP,
        actor=one.actor_id,
    )
