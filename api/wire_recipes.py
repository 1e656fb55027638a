"""Recipes on the wire."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict

from statevisor.api.wire import Query
from statevisor.api.wire_versions import VersionObject, version_object
from statevisor.hypervisor.recipes import RecipeView, RuleStep
from statevisor.hypervisor.records import ImageRef, TokenRun


class RecipeQuery(Query):
    """Whether to go back to the beginning of the history."""

    whole: bool = False


class ImageObject(TypedDict):
    """An image that is kept, and what it fits to."""

    digest: str
    bytes: int
    layout: str
    weights: str
    build: str


class TokensStep(TypedDict):
    """Tokens to be absorbed."""

    kind: Literal["prompt", "generated"]
    position: int
    token_ids: list[int]


class RuleStepObject(TypedDict):
    """A rule to be run on the state."""

    kind: Literal["rule"]
    position: int
    version: str
    rule: str
    rule_version: int | None
    params: dict[str, Any]
    select: dict[str, Any]
    others: list[str]
    before: str | None
    digest: str | None
    build: str | None


class RecipeObject(TypedDict):
    """What makes a version again: `start` (null: the empty state), then the steps in order."""

    object: Literal["recipe"]
    version: VersionObject
    model: str
    start: ImageObject | None
    position: int
    steps: list[TokensStep | RuleStepObject]


def recipe_object(view: RecipeView) -> RecipeObject:
    """A recipe."""
    return {
        "object": "recipe",
        "version": version_object(view.version),
        "model": view.model,
        "start": None if view.start is None else _image(view.start),
        "position": view.position,
        "steps": [_rule(one) if isinstance(one, RuleStep) else _tokens(one) for one in view.steps],
    }


def _image(ref: ImageRef) -> ImageObject:
    return {
        "digest": ref.digest,
        "bytes": ref.nbytes,
        "layout": ref.layout,
        "weights": ref.weights,
        "build": ref.build,
    }


def _tokens(run: TokenRun) -> TokensStep:
    return {
        "kind": "prompt" if run.kind == "prompt" else "generated",
        "position": run.position,
        "token_ids": list(run.tokens),
    }


def _rule(step: RuleStep) -> RuleStepObject:
    return {
        "kind": "rule",
        "position": step.position,
        "version": step.version,
        "rule": step.rule,
        "rule_version": step.rule_version,
        "params": dict(step.params),
        "select": dict(step.select),
        "others": list(step.others),
        "before": step.before,
        "digest": step.digest,
        "build": step.build,
    }
