"""Versions and their lineage on the wire."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    JsonValue,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from typing_extensions import TypedDict

from statevisor.api.cursors import AfterVersion
from statevisor.api.wire import (
    Body,
    ChangeFields,
    Labels,
    Limit,
    ModelName,
    Name,
    Note,
    Position,
    Query,
    Ref,
    timestamp,
)
from statevisor.hypervisor.commands import (
    MAX_NODES,
    DiffView,
    LineageView,
    Mutate,
    Snapshot,
    VerifyView,
)
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.records import VersionRecord
from statevisor.hypervisor.vocab import parse_handle

Index = Annotated[int, Field(ge=0, lt=2**31)]
Indices = Annotated[list[Index], Field(min_length=1, max_length=65536)]


class SnapshotBody(Body):
    """POST /v1/actors/{a}/snapshot."""

    tag: Name | None = None
    labels: Labels = Field(default_factory=dict)

    def command(self, actor: str, wait: bool, change: ChangeFields) -> Snapshot:
        """The command for one actor."""
        return Snapshot(actor=actor, tag=self.tag, labels=self.labels, wait=wait, **change)


class WaitQuery(Query):
    """Whether to answer only once the image is written."""

    wait: bool = False


class Selection(Body):
    """The part of the state that a rule touches; a list left out means all."""

    families: Annotated[list[Name], Field(min_length=1, max_length=256)] | None = None
    layers: Indices | None = None
    heads: Indices | None = None


#: Two names stand for versions in every rule; all others are the rule's own.
_REFS: TypeAdapter[list[str]] = TypeAdapter(Annotated[list[Ref], Field(max_length=256)])


class MutateBody(Body):
    """POST /v1/actors/{a}/mutate."""

    rule: Name
    params: dict[str, JsonValue] = Field(default_factory=dict)
    select: Selection = Selection()
    agent: Note | None = None
    reason: Note | None = None

    @field_validator("params")
    @classmethod
    def _named_versions(cls, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        one = [params["from"]] if "from" in params else []
        try:
            _REFS.validate_python(params.get("others", []), strict=True)
            _REFS.validate_python(one, strict=True)
        except ValidationError:
            raise ValueError("others and from name versions by handle or tag") from None
        return params

    def command(self, actor: str, change: ChangeFields) -> Mutate:
        """The command for one actor."""
        select = self.select
        return Mutate(
            actor=actor,
            mutation=Mutation(
                rule=self.rule,
                params=self.params,
                families=None if select.families is None else tuple(select.families),
                layers=None if select.layers is None else tuple(select.layers),
                heads=None if select.heads is None else tuple(select.heads),
            ),
            agent=self.agent,
            reason=self.reason,
            **change,
        )


class VersionsQuery(Query):
    """A page of an actor's versions: `from` and `to` are seqs, `after` a handle."""

    start: Annotated[Position, Field(alias="from")] = 0
    stop: Annotated[Position | None, Field(alias="to")] = None
    after: AfterVersion | None = None
    limit: Limit = 50

    @property
    def after_seq(self) -> int | None:
        """The seq that the page begins behind."""
        first = self.start - 1 if self.start else None
        handle = parse_handle(self.after) if self.after else None
        return first if handle is None else max(handle.seq, first or 0)


class LineageQuery(Query):
    """Which part of the graph, in which form."""

    direction: Literal["ancestors", "descendants", "both"] = "both"
    depth: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    limit: Annotated[int, Field(ge=1, le=MAX_NODES, description="versions, nearest first")] = (
        MAX_NODES
    )
    format: Literal["json", "dot", "mermaid", "prov"] = "json"
    stream: Annotated[bool, Field(description="all of it, written as it is read")] = False

    @model_validator(mode="after")
    def _all_or_some(self) -> Self:
        if self.stream and self.model_fields_set & {"depth", "limit"}:
            raise ValueError("a stream is the whole graph: leave depth and limit out")
        return self


class PairQuery(Query):
    """Two versions."""

    a: Ref
    b: Ref


class BlameQuery(Query):
    """A version and a layer of its state."""

    v: Ref
    layer: Index


class ImportQuery(Query):
    """Where imported bytes go, and what they must be."""

    name: Name | None = None
    model: ModelName | None = None
    digest: Annotated[
        str | None,
        StringConstraints(pattern=r"^blake3:[0-9a-f]{64}$"),
        Field(description="of the whole file; another file is refused"),
    ] = None


class VersionObject(TypedDict):
    """`name@seq`: an immutable position of an actor's history."""

    object: Literal["version"]
    handle: str
    actor: str
    actor_id: str
    seq: int
    position: int
    op: Literal["create", "turn", "snapshot", "fork", "mutate", "rollback", "import"]
    parents: list[str]
    digest: str | None
    bytes: int | None
    rule: str | None
    rule_version: int | None
    params: dict[str, Any]
    select: dict[str, Any]
    agent: str | None
    reason: str | None
    before: str | None
    drift: bool
    build: str | None
    tags: list[str]
    labels: dict[str, str]
    created_at: str


#: `from` is a keyword, so this one is written as a call.
EdgeObject = TypedDict("EdgeObject", {"from": str, "to": str, "op": str})


class LineageObject(TypedDict):
    """A part of the lineage graph."""

    object: Literal["lineage"]
    nodes: list[VersionObject]
    edges: list[EdgeObject]
    truncated: bool


class AncestryObject(TypedDict):
    """Whether one version comes from another."""

    object: Literal["ancestry"]
    a: str
    b: str
    is_ancestor: bool


class FamilyDiffObject(TypedDict):
    """How far two states are apart in one layer of one family."""

    family: str
    layer: int
    norm_a: float
    norm_b: float
    distance: float
    cosine: float | None


class DiffObject(TypedDict):
    """How two versions differ."""

    object: Literal["diff"]
    a: VersionObject
    b: VersionObject
    common_ancestor: str | None
    shared_tokens: int
    tokens_a: list[int]
    tokens_b: list[int]
    families: list[FamilyDiffObject]


class VerifyObject(TypedDict):
    """What re-deriving a version gave."""

    object: Literal["verify"]
    ok: bool
    checked: int
    digest: str
    expected: str | None


def version_object(record: VersionRecord) -> VersionObject:
    """A version."""
    return {
        "object": "version",
        "handle": record.handle,
        "actor": record.actor,
        "actor_id": record.actor_id,
        "seq": record.seq,
        "position": record.position,
        "op": record.op.value,
        "parents": list(record.parents),
        "digest": record.digest,
        "bytes": record.nbytes,
        "rule": record.rule,
        "rule_version": record.rule_version,
        "params": dict(record.params),
        "select": dict(record.select),
        "agent": record.agent,
        "reason": record.reason,
        "before": record.before,
        "drift": record.drift,
        "build": record.build,
        "tags": list(record.tags),
        "labels": dict(record.labels),
        "created_at": timestamp(record.created_at),
    }


def lineage_object(view: LineageView) -> LineageObject:
    """A part of the lineage graph."""
    return {
        "object": "lineage",
        "nodes": [version_object(node) for node in view.nodes],
        "edges": [{"from": parent, "to": child, "op": op} for parent, child, op in view.edges],
        "truncated": view.truncated,
    }


def diff_object(view: DiffView) -> DiffObject:
    """How two versions differ."""
    return {
        "object": "diff",
        "a": version_object(view.a),
        "b": version_object(view.b),
        "common_ancestor": view.common_ancestor,
        "shared_tokens": view.shared_tokens,
        "tokens_a": list(view.tokens_a),
        "tokens_b": list(view.tokens_b),
        "families": [
            {
                "family": one.family,
                "layer": one.layer,
                "norm_a": one.norm_a,
                "norm_b": one.norm_b,
                "distance": one.distance,
                "cosine": one.cosine,
            }
            for one in view.families
        ],
    }


def verify_object(view: VerifyView) -> VerifyObject:
    """What re-deriving a version gave."""
    return {
        "object": "verify",
        "ok": view.ok,
        "checked": view.checked,
        "digest": view.digest,
        "expected": view.expected,
    }
