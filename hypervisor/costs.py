"""What going back in time would cost, told before it is paid.

A fork or a rollback is one small transaction whatever it names. The bill comes with the first touch
behind it: the nearest state at or before the place is brought into a slot and the tokens after it
are replayed. How many those are, and how many they can ever become, follows from the rows alone.
"""

from __future__ import annotations

from typing import NamedTuple

from statevisor.hypervisor import lineage, retention
from statevisor.hypervisor.catalog_port import Catalog, Origin
from statevisor.hypervisor.commands import Change, CostView, Fork, Place, Rollback
from statevisor.hypervisor.history import Paths
from statevisor.hypervisor.lineage import Path
from statevisor.hypervisor.records import ImageRef
from statevisor.hypervisor.residency import Residency
from statevisor.hypervisor.roster import Roster
from statevisor.hypervisor.vocab import MAX_SEED, Bound, Source


class _Nearest(NamedTuple):
    """The state that a replay would begin with."""

    source: Source
    position: int
    absorbed: int
    image: ImageRef | None


class Costs:
    """Foretells forks and rollbacks; writes nothing, moves nothing and waits for no turn."""

    def __init__(self, *, roster: Roster, catalog: Catalog, paths: Paths) -> None:
        self._roster = roster
        self._catalog = catalog
        self._paths = paths

    async def rollback(self, command: Rollback) -> CostView:
        """The first touch of an actor after it went back. Raises: as the rollback would."""
        return await self._of(command, command.actor, command.to, leaves=True)

    async def fork(self, command: Fork) -> CostView:
        """The first touch of the first child; who wakes beside it shares its replay.

        Raises: as the fork would for its place.
        """
        return await self._of(command, command.actor, command.at, leaves=False)

    async def _of(self, change: Change, key: str, at: Place | None, *, leaves: bool) -> CostView:
        """`leaves`: the actor itself goes there, and lets go of the slot it holds."""
        actor = await self._roster.find(key)
        self._roster.check_generation(actor, change)
        record = actor.committed()
        origin = await self._roster.history(record).origin(
            actor.id,
            actor.path,
            record.position,
            record.base,
            record.position if at is None else at,
        )
        path = await self._paths.of(origin.segment)
        residency = self._roster.residency(actor)
        rest = max(origin.position - 1, 0)
        wanted = lineage.same_state(path, rest)
        twin = residency.twin(wanted, actor if leaves else None)
        if twin is not None:
            nearest = _Nearest(Source.SLOT, origin.position, rest, None)
        else:
            nearest = await self._stored(residency, origin, path)
        tokens = max(0, rest - nearest.absorbed)
        bound, most = await self._bound(residency, origin, path)
        speed = residency.states.checkpoints.tokens_s
        return CostView(
            actor=record.name,
            position=origin.position,
            source=nearest.source,
            source_position=nearest.position,
            image=None if nearest.image is None else nearest.image.digest,
            tokens=tokens,
            replay_s=0.0 if not tokens else None if speed is None else tokens / speed,
            bound=bound,
            bound_tokens=max(tokens, most),
        )

    async def _stored(self, residency: Residency, origin: Origin, path: Path) -> _Nearest:
        """The nearest image, or the empty state."""
        found = await self._catalog.nearest_image(origin.segment, origin.position)
        if found is None:
            return _Nearest(Source.EMPTY, 0, 0, None)
        at, ref = found
        absorbed = max(at - 1, 0)
        if any(one.rooted and one.position == at for one in path):
            # only an import may have more than one token pending, and only its file knows
            absorbed = (await residency.states.read(ref))[1].absorbed
        return _Nearest(Source.IMAGE, at, absorbed, ref)

    async def _bound(self, residency: Residency, origin: Origin, path: Path) -> tuple[Bound, int]:
        """Which rule keeps images near a place, and the most tokens that it leaves to be replayed.

        The distance between checkpoints holds near the newest image of a segment; farther back a
        collection keeps one for every power of two. No replay crosses a rooted segment.
        """
        distance = residency.states.checkpoints.distance
        end, behind = origin.position, 0
        for segment in reversed(path):
            found = await self._catalog.nearest_image(segment.id, MAX_SEED)
            behind = max(behind, (0 if found is None else found[0]) - end)
            end = min(end, segment.position)
            if segment.rooted or end <= origin.position - distance:
                break
        dense = behind <= retention.DENSE
        most = distance if dense else distance + 2 * (behind + distance)
        whole = max(origin.position - 1, 0) - _floor(path)
        return Bound.DENSE if dense else Bound.SPARSE, min(most, whole)


def _floor(path: Path) -> int:
    """How many tokens every state on the end of a path has absorbed at least, for ever."""
    for index in range(len(path) - 1, 0, -1):
        if path[index].rooted:
            # an import has the tokens from its base on pending
            base = path[0].position if index == 1 else 0
            return base or path[index].position - 1
    return 0
