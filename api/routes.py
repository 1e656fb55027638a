"""Every route in one table: which handler, who may call it, what it answers.

The table is the truth for the router, for the checks before a handler runs and for the OpenAPI
document.
"""

from __future__ import annotations

from typing import Any

from statevisor.api import actors, admin, documents, lineage, models, ops, tiers, turns, versions
from statevisor.api.route import Route
from statevisor.api.wire import ListObject
from statevisor.api.wire_actors import ActorObject, CostObject
from statevisor.api.wire_admin import BackupObject, FsckObject, GcObject
from statevisor.api.wire_models import ModelObject, TextObject, TokensObject
from statevisor.api.wire_recipes import RecipeObject
from statevisor.api.wire_tiers import DrainObject, EvictObject, TierObject
from statevisor.api.wire_turns import CancelledObject, TranscriptObject, TurnObject
from statevisor.api.wire_versions import (
    AncestryObject,
    DiffObject,
    LineageObject,
    VerifyObject,
    VersionObject,
)

ROUTES: tuple[Route, ...] = (
    # -- actors
    Route(
        "POST", "/v1/actors", actors.create, "actors", answer=ActorObject, status=201, changes=True
    ),
    Route("GET", "/v1/actors", actors.search, "actors", answer=ListObject, items=ActorObject),
    Route("GET", "/v1/actors/{a}", actors.read, "actors", answer=ActorObject),
    Route("PATCH", "/v1/actors/{a}", actors.update, "actors", answer=ActorObject, changes=True),
    Route("DELETE", "/v1/actors/{a}", actors.delete, "actors", status=204, changes=True),
    Route(
        "POST",
        "/v1/actors/{a}/fork",
        actors.fork,
        "actors",
        answer=ListObject,
        items=ActorObject,
        status=201,
        told=CostObject,
        changes=True,
    ),
    Route(
        "POST",
        "/v1/actors/{a}/rollback",
        actors.rollback,
        "actors",
        answer=ActorObject,
        told=CostObject,
        changes=True,
    ),
    Route(
        "POST",
        "/v1/actors/{a}/hibernate",
        actors.hibernate,
        "actors",
        answer=ActorObject,
        changes=True,
        keeps=True,
    ),
    Route(
        "POST",
        "/v1/actors/{a}/resume",
        actors.resume,
        "actors",
        answer=ActorObject,
        changes=True,
        keeps=True,
    ),
    # -- turns
    Route("POST", "/v1/actors/{a}/append", turns.append, "infer", answer=TurnObject, changes=True),
    Route(
        "POST",
        "/v1/actors/{a}/generate",
        turns.generate,
        "infer",
        answer=TurnObject,
        media=("text/event-stream",),
        changes=True,
    ),
    Route(
        "POST",
        "/v1/actors/{a}/cancel",
        turns.cancel,
        "infer",
        answer=CancelledObject,
        status=202,
        keeps=True,
    ),
    Route("GET", "/v1/actors/{a}/transcript", turns.transcript, "infer", answer=TranscriptObject),
    # -- versions
    Route(
        "POST",
        "/v1/actors/{a}/snapshot",
        versions.snapshot,
        "actors",
        answer=VersionObject,
        status=201,
        changes=True,
    ),
    Route(
        "POST",
        "/v1/actors/{a}/mutate",
        versions.mutate,
        "actors",
        answer=VersionObject,
        status=201,
        changes=True,
    ),
    Route(
        "GET",
        "/v1/actors/{a}/versions",
        versions.of_actor,
        "actors",
        answer=ListObject,
        items=VersionObject,
    ),
    Route("GET", "/v1/actors/{a}/head", versions.head, "actors", answer=VersionObject),
    Route("GET", "/v1/versions", versions.search, "actors", answer=ListObject, items=VersionObject),
    Route(
        "POST",
        "/v1/versions/import",
        versions.bring_in,
        "actors",
        answer=VersionObject,
        status=201,
        changes=True,
    ),
    Route("GET", "/v1/versions/{v}", versions.read, "actors", answer=VersionObject),
    Route("GET", "/v1/versions/{v}/diff/{w}", versions.diff, "actors", answer=DiffObject),
    Route(
        "GET",
        "/v1/versions/{v}/export",
        versions.export,
        "actors",
        media=("application/octet-stream",),
    ),
    Route("GET", "/v1/versions/{v}/recipe", versions.recipe, "actors", answer=RecipeObject),
    Route(
        "POST",
        "/v1/versions/{v}/verify",
        versions.verify,
        "actors",
        answer=VerifyObject,
        keeps=True,
    ),
    # -- lineage
    Route(
        "GET",
        "/v1/actors/{a}/lineage",
        lineage.around,
        "actors",
        answer=LineageObject,
        media=("text/vnd.graphviz", "text/plain", "application/x-ndjson"),
    ),
    Route(
        "GET",
        "/v1/versions/{v}/lineage",
        lineage.around_version,
        "actors",
        answer=LineageObject,
        media=("text/vnd.graphviz", "text/plain", "application/x-ndjson"),
    ),
    Route(
        "GET",
        "/v1/lineage/common-ancestor",
        lineage.common_ancestor,
        "actors",
        answer=VersionObject,
    ),
    Route("GET", "/v1/lineage/is-ancestor", lineage.is_ancestor, "actors", answer=AncestryObject),
    Route("GET", "/v1/lineage/blame", lineage.blame, "actors", answer=VersionObject | None),
    # -- tiers
    Route("GET", "/v1/tiers", tiers.usage, "actors", answer=ListObject, items=TierObject),
    Route("POST", "/v1/tiers/evict", tiers.evict, "admin", answer=EvictObject, keeps=True),
    # -- models
    Route("GET", "/v1/models", models.loaded, "infer", answer=ListObject, items=ModelObject),
    Route("GET", "/v1/models/{m}", models.read, "infer", answer=ModelObject),
    Route("POST", "/tokenize", models.tokenize, "infer", answer=TokensObject),
    Route("POST", "/detokenize", models.detokenize, "infer", answer=TextObject),
    Route("GET", "/tokenizer_info", models.tokenizer_info, "infer", answer=dict[str, Any]),
    # -- operations
    Route("GET", "/health", ops.health, "public", answer=dict[str, str]),
    Route("GET", "/ready", ops.ready, "public", answer=dict[str, str]),
    Route("GET", "/version", ops.version, "public", answer=dict[str, str]),
    Route("GET", "/metrics", ops.scrape, "public", media=("text/plain",)),
    Route("GET", "/openapi.json", documents.describe, "public", answer=dict[str, Any]),
    Route("GET", "/docs", documents.page, "public", media=("text/html",)),
    # -- administration
    Route("POST", "/v1/admin/drain", ops.drain, "admin", answer=DrainObject, keeps=True),
    Route("POST", "/v1/admin/gc", admin.gc, "admin", answer=GcObject, keeps=True),
    Route("POST", "/v1/admin/fsck", admin.fsck, "admin", answer=FsckObject, keeps=True),
    Route("POST", "/v1/admin/backup", admin.backup, "admin", answer=BackupObject, keeps=True),
)
