"""The catalog as a Protocol, with what is written to it and asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.records import (
    ActorRecord,
    ImageRef,
    OperationRecord,
    SegmentRecord,
    TokenRun,
    TurnRecord,
    VersionRecord,
)
from statevisor.hypervisor.vocab import FinishReason, Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """An Idempotency-Key to be stored, with its result, in the operation's own transaction."""

    key: str
    request: str  #: hash of method, path and body


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Conditions of a change, checked inside its transaction."""

    epoch: int | None = None  #: the writer's epoch: Fenced if the actor's is higher
    generation: int | None = None  #: If-Match: GenerationConflict if the actor's differs
    once: Once | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewActor:
    """An actor to be inserted."""

    id: str
    name: str
    model: str
    seed: int
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a new segment begins: a position on another segment, or nowhere."""

    segment: int
    position: int
    handle: (
        str | None
    )  #: the version named by the caller; None for a bare position (an anchor is made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What made a state that does not follow from tokens."""

    rule: str | None = None
    rule_version: int | None = None
    params: Mapping[str, Any] | None = None
    select: Mapping[str, Any] | None = None
    agent: str | None = None
    reason: str | None = None
    before: str | None = None
    parents: tuple[str, ...] = ()  #: further parents (blend), handles
    weights: tuple[float, ...] = ()


class JournalEntry(NamedTuple):  # one is made for every row of a step: a third of a record's time
    """Generated tokens of one open turn, in one group commit."""

    turn_id: str
    segment: int
    position: int  #: place of the first token in the transcript
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorQuery:
    """Filters and page of a list of actors. `ids` restricts it to these (for status and tier)."""

    model: str | None = None
    label: tuple[str, str | None] | None = None  #: key, value or any
    q: str | None = None  #: substring of the name
    ids: frozenset[str] | None = None
    exclude: frozenset[str] | None = None
    after: str | None = None  #: id
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionQuery:
    """Filters and page of a list of versions; None lets every version through."""

    tag: str | None = None
    label: tuple[str, str | None] | None = None  #: key, value or any
    op: Op | None = None
    agent: str | None = None  #: who made it by a rule
    rule: str | None = None
    since_us: int | None = None  #: made at this time or later
    until_us: int | None = None  #: made before this time
    after: str | None = None  #: handle
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """One part of a walk through a lineage, and where the next part begins."""

    nodes: tuple[VersionRecord, ...]
    edges: tuple[tuple[str, str, Op], ...]  #: parent, child, op; one end at least is among `nodes`
    rest: tuple[int, ...]  #: empty at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """An image as that of a place."""

    segment: int
    position: int
    image: ImageRef
    actor_id: str
    model: str
    rooted: bool  #: no replay leads to it
    pinned: bool  #: the actor is
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubbish:
    """What a sweep would take out now."""

    actors: tuple[str, ...]  #: ids of deleted ones that nothing living descends from
    versions: int
    tokens: int
    orphans: int  #: images that no place names any more, waiting to be freed
    orphan_bytes: int
    ripe: int  #: those of them whose grace has passed
    ripe_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong in a data folder."""

    kind: str
    detail: str
    advice: str  #: what to do, or what a repair does
    actor: str | None = None
    version: str | None = None
    repaired: bool = False


class Standing(NamedTuple):
    """A place as who is about to write its image sees it."""

    image: ImageRef | None
    pending: tuple[int, ...]  #: the tokens absorbed..position; empty if it has an image


class Catalog(Protocol):
    """The SQL truth: actors, segments, tokens, versions, lineage, turns, keys.

    One method is one transaction; when it returns it is durable (synchronous=FULL) and visible to
    every later read. Methods that change an actor bump its generation by one. Concurrent calls may
    share one commit; a call that fails leaves nothing behind and disturbs no other.
    """

    async def close(self) -> None: ...

    def use_builds(self, builds: Mapping[str, str]) -> None:
        """The build fingerprint of each model, written into every version made from now on."""
        ...

    # -- reading ---------------------------------------------------------------------------------
    async def actor(self, key: str) -> ActorRecord:
        """By id or name; deleted actors are not found. Raises: ActorNotFound."""
        ...

    async def actors(self, query: ActorQuery) -> tuple[tuple[ActorRecord, ...], bool]:
        """One page in order of id (that is, of creation), and whether more follow."""
        ...

    async def recent(self, limit: int) -> tuple[ActorRecord, ...]:
        """The living actors that changed last, the newest change first."""
        ...

    async def count_actors(self) -> int: ...

    async def segment(self, segment: int) -> SegmentRecord: ...

    async def path(self, segment: int, limit: int) -> tuple[SegmentRecord, ...]:
        """A segment and those that its path comes from, nearest first. Raises: NotFound."""
        ...

    async def transcript(self, segment: int, start: int, stop: int) -> tuple[TokenRun, ...]:
        """The path's tokens in start..stop, journalled ones of open turns included."""
        ...

    async def version(self, handle: str) -> VersionRecord:
        """By `name@seq`, `id@seq` or tag. Raises: VersionNotFound."""
        ...

    async def version_at(self, segment: int, position: int) -> VersionRecord | None:
        """The newest visible version at exactly that place of the path, if any."""
        ...

    async def versions(
        self, actor_id: str, after: int | None, limit: int
    ) -> tuple[tuple[VersionRecord, ...], bool]:
        """Visible versions by seq, oldest first."""
        ...

    async def search(self, query: VersionQuery) -> tuple[tuple[VersionRecord, ...], bool]:
        """One page of all visible versions in the order of their creation, and whether more follow.

        Raises: VersionNotFound (the page begins behind a version that does not exist).
        """
        ...

    async def as_of(self, actor_id: str, at_us: int) -> VersionRecord | None:
        """The version that was an actor's head at a time; None: it did not exist yet.

        Times along one actor's versions never go back, whatever the clock does.
        Raises: ActorNotFound.
        """
        ...

    async def lineage(
        self, handle: str, direction: str, depth: int, limit: int
    ) -> tuple[tuple[VersionRecord, ...], tuple[tuple[str, str, Op], ...], bool]:
        """Nodes, edges (parent, child, op) and whether it was cut.

        direction: ancestors | descendants | both.
        """
        ...

    async def walk(self, start: str | Sequence[int], direction: str, limit: int) -> Walk:
        """The next `limit` versions of all that lie above or below one; needs no memory of others.

        Begins at a handle and goes on with the `rest` of the part before. direction: ancestors,
        newest first, or descendants, oldest first. Raises: VersionNotFound.
        """
        ...

    async def common_ancestor(self, a: str, b: str) -> VersionRecord | None:
        """The last version that both come from, or one of the two; None if they share nothing.

        Of several it is the one on the segment begun last, at the greatest position there: nothing
        else that both come from comes from it. Raises: VersionNotFound.
        """
        ...

    async def is_ancestor(self, a: str, b: str) -> bool:
        """Whether version b comes from version a, or is it. Raises: VersionNotFound."""
        ...

    async def blame(self, handle: str, layer: int) -> VersionRecord | None:
        """The newest mutation on the version's path that touched the layer."""
        ...

    async def nearest_image(self, segment: int, position: int) -> tuple[int, ImageRef] | None:
        """The image with the greatest position <= `position`, not beyond a rooted segment.

        None: only the empty state at position 0 can begin a replay.
        """
        ...

    async def image(self, digest: str) -> ImageRef | None: ...

    async def image_at(self, segment: int, position: int) -> ImageRef | None:
        """The image at exactly that place of the path."""
        ...

    async def standing(self, segment: int, position: int, absorbed: int) -> Standing:
        """What an image of a place would have to say, or the image that it has, at one look."""
        ...

    async def live_images(self) -> tuple[ImageRef, ...]:
        """Every image a row names, for the free map at start."""
        ...

    async def turn(self, turn_id: str) -> TurnRecord: ...

    async def operation(self, key: str) -> OperationRecord | None: ...

    # -- changing --------------------------------------------------------------------------------
    async def create(
        self, new: NewActor, prompt: Sequence[int], *, once: Once | None = None
    ) -> ActorRecord:
        """Insert an actor, its root segment, prompt tokens and version 0. Raises: ActorExists."""
        ...

    async def fork(
        self,
        children: Sequence[NewActor],
        origin: Origin,
        *,
        prompt: Sequence[int] = (),
        once: Once | None = None,
    ) -> tuple[ActorRecord, ...]:
        """Insert actors that begin at a position of another's history, all or none.

        Each child gets a segment, version 0 (op fork) with the origin as parent, and the prompt.
        Raises: ActorExists, VersionNotFound.
        """
        ...

    async def import_image(
        self,
        new: NewActor,
        image: ImageRef,
        meta: ImageMeta,
        *,
        agent: str | None = None,
        once: Once | None = None,
    ) -> tuple[ActorRecord, VersionRecord]:
        """Insert an actor whose rooted segment begins at an imported image.

        Its base is meta.position - len(pending).
        """
        ...

    async def update(
        self,
        actor_id: str,
        *,
        guard: Guard,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        pinned: bool | None = None,
        ttl_s: int | None = None,
        seed: int | None = None,
        drift: bool | None = None,
    ) -> ActorRecord:
        """Change an actor's own fields; None leaves one, ttl_s 0 clears it. Raises: ActorExists.

        Every version made by an actor with `drift`, and by its forks, says drift.
        """
        ...

    async def delete(self, actor_id: str, *, guard: Guard) -> None:
        """Tombstone an actor: its name is free, its journal stays while descendants live."""
        ...

    async def quarantine(self, actor_id: str, reason: str | None, *, guard: Guard) -> ActorRecord:
        """Set or (None) lift the quarantine."""
        ...

    async def begin_turn(
        self, turn: TurnRecord, prompt: Sequence[int], *, guard: Guard
    ) -> ActorRecord:
        """Open a turn, append its prompt at the actor's position; one open turn per actor."""
        ...

    async def journal(self, entries: Sequence[JournalEntry], *, incarnation: int) -> None:
        """Append one packed group of generated tokens; returns when durable.

        Fenced once by the writer's incarnation (the owner of the whole folder). Raises: Fenced.
        """
        ...

    async def end_turn(
        self,
        turn_id: str,
        *,
        finish: FinishReason,
        position: int,
        text: str,
        result: Mapping[str, Any] | None,
        guard: Guard,
        broken: bool = False,
    ) -> ActorRecord:
        """Fold the turn's tokens, move the actor to `position`; its head is a version, op turn.

        Tokens beyond are dropped, unless a version or an image was made of them: then the end is
        refused. Raises: StatevisorError.
        """
        ...

    async def open_turns(self) -> tuple[TurnRecord, ...]:
        """Turns left open by a crash, with the position their journalled tokens reach."""
        ...

    async def snapshot(
        self,
        actor_id: str,
        segment: int,
        position: int,
        *,
        tag: str | None,
        labels: Mapping[str, str],
        guard: Guard,
    ) -> VersionRecord:
        """Make a version (op snapshot) at a committed position. A tag moves if it exists.

        The position is on a segment of the actor's own, as every version's is: a history taken
        over with a fork is another's. Raises: VersionNotFound.
        """
        ...

    async def mutate(
        self, actor_id: str, image: ImageRef, why: Provenance, *, guard: Guard
    ) -> tuple[ActorRecord, VersionRecord]:
        """Open a rooted segment at the actor's position with that image; the head moves to it."""
        ...

    async def rollback(
        self, actor_id: str, origin: Origin, *, seed: int | None, guard: Guard
    ) -> tuple[ActorRecord, VersionRecord]:
        """Open a segment at an earlier position; lifts a quarantine; the old branch stays."""
        ...

    async def add_image(self, segment: int, position: int, image: ImageRef) -> None:
        """Name a durable image as a checkpoint of a place. The digest may be known already."""
        ...

    async def keep_image(self, segment: int, position: int, image: ImageRef) -> ImageRef:
        """As `add_image`, but what is there already stays; returns the image that the place has.

        If that is another, no row names `image`: its bytes are the caller's to free.
        """
        ...

    async def remember(self, once: Once, result: Mapping[str, Any]) -> None:
        """Store a key with the result of an operation that has no transaction of its own."""
        ...

    async def sweep(self, *, grace_us: int) -> tuple[ImageRef, ...]:
        """Take out deleted actors without living descendants, and images that no place names.

        Returns the images to be freed: no row names them any more. An image is found no more by
        its digest from one sweep on, and freed by a later one that is more than `grace_us` apart.
        """
        ...

    async def checkpoints(self, after: int, limit: int) -> tuple[Checkpoint, ...]:
        """The images of `limit` segments with ids above `after`, by segment and position.

        Whole segments only; an empty answer is the end.
        """
        ...

    async def anchors(self) -> Mapping[tuple[int, int], str]:
        """Places whose images stay, and why: `named` by a snapshot or a tag, or `base` of an actor.

        A base is the nearest image below the segment that a living actor stands on.
        """
        ...

    async def rubbish(self, *, grace_us: int) -> Rubbish:
        """What sweeps of that grace would take out; changes nothing."""
        ...

    async def forget(self, places: Sequence[tuple[int, int]]) -> None:
        """Take images from places; those that no other place names are freed by later sweeps.

        The image that a rooted segment begins with stays.
        """
        ...

    async def check(self) -> tuple[Finding, ...]:
        """Look for rows that contradict each other; reads everything but images."""
        ...

    async def claim(self, owner: str) -> int:
        """Take the data folder: a new, higher incarnation; older writers are fenced."""
        ...
