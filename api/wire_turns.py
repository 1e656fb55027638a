"""Turns and transcripts on the wire."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NotRequired, Self

from pydantic import Field, StringConstraints, model_validator
from typing_extensions import TypedDict

from statevisor.api.wire import Body, ChangeFields, Name, Position, Query, Seed, TokenId, TokenIds
from statevisor.hypervisor.commands import (
    Append,
    CancelTurn,
    Generate,
    Prompt,
    TokenEvent,
    TranscriptView,
    TurnView,
)
from statevisor.hypervisor.plan import Logprobs
from statevisor.hypervisor.sampling import SamplerSettings

StopText = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Penalty = Annotated[float, Field(ge=-100, le=100)]


class Prompted(Body):
    """A body that may carry a prompt: text, or the token ids themselves."""

    prompt: str | None = None
    token_ids: TokenIds | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.prompt is not None and self.token_ids is not None:
            raise ValueError("give prompt or token_ids, not both")
        return self

    @property
    def words(self) -> Prompt | None:
        """The prompt in whichever form it came."""
        return self.prompt if self.token_ids is None else tuple(self.token_ids)


class AppendBody(Prompted):
    """POST /v1/actors/{a}/append."""

    @model_validator(mode="after")
    def _required(self) -> Self:
        if self.words is None:
            raise ValueError("give prompt or token_ids")
        return self

    def command(self, actor: str, change: ChangeFields) -> Append:
        """The command for one actor."""
        assert self.words is not None  # the validator has seen to it
        return Append(actor=actor, prompt=self.words, **change)


class GenerateBody(Prompted):
    """POST /v1/actors/{a}/generate."""

    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] = 128
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    penalty_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Seed | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=64)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=1024)] = Field(default_factory=list)
    ignore_eos: bool = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream: bool = False
    commit: bool = True

    def command(self, actor: str, change: ChangeFields) -> Generate:
        """The command for one actor."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return Generate(
            actor=actor,
            prompt=self.words,
            max_tokens=self.max_tokens,
            settings=SamplerSettings(
                temperature=self.temperature,
                top_p=self.top_p,
                top_k=self.top_k,
                min_p=self.min_p,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                penalty_decay=self.penalty_decay,
                logprobs=self.logprobs,
            ),
            seed=self.seed,
            stop=tuple(stop),
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            commit=self.commit,
            **change,
        )


class CancelBody(Body):
    """POST /v1/actors/{a}/cancel."""

    turn: Name | None = None

    def command(self, actor: str) -> CancelTurn:
        """The command for one actor."""
        return CancelTurn(actor=actor, turn=self.turn)


class TranscriptQuery(Query):
    """Which part of a transcript."""

    start: Annotated[Position | None, Field(alias="from")] = None
    stop: Annotated[Position | None, Field(alias="to")] = None


class Usage(TypedDict):
    """What a turn took in and gave out."""

    prompt_tokens: int
    completion_tokens: int


class TopLogprob(TypedDict):
    """One alternative."""

    token_id: int
    logprob: float | None


class TokenLogprobs(TypedDict):
    """Log probabilities at one token, of the raw distribution; null stands for minus infinity."""

    logprob: float | None
    top: list[TopLogprob]


class TurnObject(TypedDict):
    """A finished turn."""

    object: Literal["turn"]
    id: str
    actor: str
    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length", "cancelled", "error"]
    position: int
    durable_position: int
    generation: int
    usage: Usage
    logprobs: NotRequired[list[TokenLogprobs | None]]
    error: NotRequired[str]


class CancelledObject(TypedDict):
    """Which turn was asked to end."""

    object: Literal["cancel"]
    turn: str


class SegmentObject(TypedDict):
    """Consecutive tokens of one kind."""

    position: int
    count: int
    kind: str


#: `from` is a keyword, so this one is written as a call.
TranscriptObject = TypedDict(
    "TranscriptObject",
    {
        "object": Literal["transcript"],
        "actor": str,
        "from": int,
        "to": int,
        "token_ids": list[int],
        "text": str,
        "segments": list[SegmentObject],
    },
)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def logprobs_object(logprobs: Logprobs) -> TokenLogprobs:
    """Log probabilities at one token."""
    return {
        "logprob": _finite(logprobs.chosen),
        "top": [{"token_id": token, "logprob": _finite(value)} for token, value in logprobs.top],
    }


def turn_object(view: TurnView) -> TurnObject:
    """A finished turn."""
    turn: TurnObject = {
        "object": "turn",
        "id": view.id,
        "actor": view.actor,
        "text": view.text,
        "token_ids": list(view.token_ids),
        "finish_reason": view.finish.value,
        "position": view.position,
        "durable_position": view.durable_position,
        "generation": view.generation,
        "usage": {
            "prompt_tokens": view.prompt_tokens,
            "completion_tokens": len(view.token_ids),
        },
    }
    if view.logprobs is not None:
        turn["logprobs"] = [None if one is None else logprobs_object(one) for one in view.logprobs]
    if view.error is not None:
        turn["error"] = view.error
    return turn


def token_object(event: TokenEvent) -> dict[str, Any]:
    """One generated token, as the stream tells it."""
    token: dict[str, Any] = {
        "index": event.index,
        "token_id": event.token,
        "text": event.text,
        "position": event.position,
    }
    if event.logprobs is not None:
        token["logprobs"] = logprobs_object(event.logprobs)
    return token


def transcript_object(view: TranscriptView) -> TranscriptObject:
    """A part of a transcript."""
    return {
        "object": "transcript",
        "actor": view.actor,
        "from": view.start,
        "to": view.stop,
        "token_ids": list(view.token_ids),
        "text": view.text,
        "segments": [
            {"position": position, "count": count, "kind": kind}
            for position, count, kind in view.segments
        ],
    }
