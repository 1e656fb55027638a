"""Models and tokenizers on the wire, in the shapes of the OpenAI and vLLM surfaces."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict

from statevisor.api.wire import Body, ModelName, Query, TokenIds
from statevisor.hypervisor.commands import ModelView


class TokenizeBody(Body):
    """POST /tokenize; special tokens are the BOS, if the model has one."""

    prompt: str
    model: ModelName | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: TokenIds
    model: ModelName | None = None


class ModelQuery(Query):
    """Which model; the server's default if left out."""

    model: ModelName | None = None


class ModelObject(TypedDict):
    """A loaded guest."""

    object: Literal["model"]
    id: str
    created: int
    owned_by: str
    family: str
    state_bytes: int
    slots: int
    vocab_size: int
    fingerprints: dict[str, str]
    capabilities: dict[str, Any]


class TokensObject(TypedDict):
    """Token ids of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TextObject(TypedDict):
    """The text of token ids."""

    prompt: str


def model_object(view: ModelView) -> ModelObject:
    """A loaded guest."""
    return {
        "object": "model",
        "id": view.name,
        "created": view.created_us // 1_000_000,
        "owned_by": "statevisor",
        "family": view.family,
        "state_bytes": view.state_bytes,
        "slots": view.slots,
        "vocab_size": view.vocab_size,
        "fingerprints": dict(view.fingerprints),
        "capabilities": dict(view.capabilities),
    }
