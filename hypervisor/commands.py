"""The whole interface of the hypervisor as values: commands in, views and events out.

Whoever builds a command has validated its form (types, ranges, name patterns); the visor decides
what depends on state (does it exist, is it allowed now, does it fit the vocabulary). All fields are
plain values, so a command can cross a socket as msgpack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from statevisor.hypervisor.catalog_port import Finding, Once
from statevisor.hypervisor.plan import Logprobs
from statevisor.hypervisor.ports import FamilyDiff, Mutation
from statevisor.hypervisor.records import ActorRecord, VersionRecord
from statevisor.hypervisor.sampling import SamplerSettings
from statevisor.hypervisor.vocab import Bound, FinishReason, Rng, Source, Tier

#: A prompt: text, or token ids.
Prompt = str | tuple[int, ...]
#: A place in a history: a handle, a tag, or a bare position.
Place = str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What every changing command carries."""

    if_generation: int | None = None  #: from If-Match
    once: Once | None = None  #: from Idempotency-Key


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateActor(Change):
    model: str | None = None  #: None: the server's default
    name: str | None = None  #: None: the server invents one
    prompt: Prompt | None = None
    seed: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    source: str | None = None  #: a version to begin from


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateActor(Change):
    actor: str
    name: str | None = None
    labels: Mapping[str, str] | None = None  #: replaces all labels
    pinned: bool | None = None
    ttl_s: int | None = None  #: 0 takes the ttl away


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteActor(Change):
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(Change):
    actor: str
    prompt: Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate(Change):
    actor: str
    prompt: Prompt | None = None
    max_tokens: int = 128
    settings: SamplerSettings = field(default_factory=SamplerSettings)
    seed: int | None = None  #: for this turn only; None: the actor's
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    commit: bool = True  #: False: a throw-away slot, nothing is journalled


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTurn:
    actor: str
    turn: str | None = None  #: None: whichever turn runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Change):
    actor: str
    tag: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    wait: bool = False  #: wait until the image is written


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork(Change):
    actor: str
    count: int = 1
    names: tuple[str, ...] = ()  #: empty: invented; else one per child
    at: Place | None = None  #: None: the last committed position
    rng: Rng = Rng.RESEED
    seeds: tuple[int, ...] = ()  #: empty: fresh or inherited; else one per child


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutate(Change):
    actor: str
    mutation: Mutation  #: `others`, `from` in params are handles
    agent: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback(Change):
    actor: str
    to: Place
    rng: Rng = Rng.RESEED


@dataclass(frozen=True, slots=True, kw_only=True)
class Hibernate(Change):
    actor: str
    tier: Tier = Tier.NVME  #: host or nvme


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Change):
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    source: Tier
    target: Tier
    actors: tuple[str, ...] | None = None
    older_than_s: float | None = None
    nbytes: int | None = None
    count: int | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportImage:
    name: str | None
    file: bytes
    model: str | None = None
    once: Once | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gc:
    """Take out what nothing needs."""

    grace_s: float = 900.0  #: nothing younger goes; an image is freed that long after its last name
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fsck:
    """Read everything and compare."""

    repair: bool = False
    replay: bool = False  #: derive every version that has an image again, and compare digests


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """Copy the whole data folder."""

    target: str  #: a path on the server's machine: a new folder, or a new file ending in .tar


# -- views ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorView:
    """An actor as committed, with where it is now."""

    record: ActorRecord
    status: str  #: a lifecycle power
    tier: Tier
    durable_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CostView:
    """What the first touch behind a fork or a rollback would pay, were it done now."""

    actor: str
    position: int  #: the place in the past
    source: Source
    source_position: int  #: where the nearest state stands, at or before `position`
    image: str | None  #: its digest, if it is an image
    tokens: int  #: to be replayed from there
    replay_s: float | None  #: at the speed measured so far; None: nothing was replayed yet
    bound: Bound
    bound_tokens: int  #: the most that `tokens` can become as collections take images out


@dataclass(slots=True)  # not frozen: one is made for every token, and that takes thrice as long
class TokenEvent:
    """One committed generated token."""

    index: int  #: among the turn's generated tokens, from 0
    position: int  #: in the transcript, from 0
    token: int
    text: str  #: what this token adds to the text; may be "" while a character is incomplete
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    """A finished turn."""

    id: str
    actor: str
    text: str
    token_ids: tuple[int, ...]
    finish: FinishReason
    position: int
    durable_position: int
    generation: int
    prompt_tokens: int
    #: One for each token; None where a crash came between: they are told once and not kept.
    logprobs: tuple[Logprobs | None, ...] | None = None
    error: str | None = None  #: code, if finish is error


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptView:
    """Tokens of an actor's transcript with their kinds."""

    actor: str
    start: int
    stop: int
    token_ids: tuple[int, ...]
    text: str
    segments: tuple[tuple[int, int, str], ...]  #: position, count, kind


#: Most versions of one lineage answer.
MAX_NODES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageView:
    """A part of the lineage graph."""

    nodes: tuple[VersionRecord, ...]
    edges: tuple[tuple[str, str, str], ...]  #: parent, child, op
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffView:
    """How two versions differ."""

    a: VersionRecord
    b: VersionRecord
    common_ancestor: str | None
    tokens_a: tuple[int, ...]  #: after the point where the transcripts part, cut at 4096
    tokens_b: tuple[int, ...]
    shared_tokens: int
    families: tuple[FamilyDiff, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyView:
    """What re-deriving a version gave."""

    ok: bool
    checked: int  #: tokens replayed
    digest: str
    expected: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TierView:
    """How full one tier is."""

    tier: Tier
    slots_capacity: int | None
    slots_used: int | None
    capacity_bytes: int
    used_bytes: int
    actors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictView:
    """What an eviction moved (or would move)."""

    moved: tuple[str, ...]
    skipped: tuple[str, ...]  #: running or pinned
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """A loaded guest."""

    name: str
    family: str
    state_bytes: int
    slots: int
    vocab_size: int
    fingerprints: Mapping[str, str]
    capabilities: Mapping[str, Any]
    created_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainView:
    """What a drain did."""

    hibernated: int
    images: int
    failed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GcLine:
    """Images of one fate."""

    reason: str
    images: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GcView:
    """What a gc took out, or would take out."""

    dry_run: bool
    actors: int  #: deleted ones whose rows are gone
    versions: int
    tokens: int
    removed: tuple[GcLine, ...]  #: deleted | surplus | unnamed
    kept: tuple[GcLine, ...]  #: see `hypervisor/retention.py`
    freed_images: int  #: given back now: their grace has passed
    freed_bytes: int
    waiting_images: int  #: named no more, freed by a gc after the grace
    waiting_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckView:
    """What a check found."""

    ok: bool  #: nothing is wrong, or everything was repaired
    images: int  #: read and compared, bit by bit
    nbytes: int
    derived: int = 0  #: versions made again and found to be the same or not
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupView:
    """A finished backup."""

    target: str
    images: int
    nbytes: int
