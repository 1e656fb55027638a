"""Models and their tokenizers."""

from __future__ import annotations

from statevisor.api.call import Call, Reply
from statevisor.api.wire import NoQuery, Nothing, listing
from statevisor.api.wire_models import DetokenizeBody, ModelQuery, TokenizeBody, model_object


async def loaded(call: Call[Nothing, NoQuery]) -> Reply:
    """List loaded models."""
    return Reply(value=listing([model_object(model) for model in await call.visor.models()], "id"))


async def read(call: Call[Nothing, NoQuery]) -> Reply:
    """Read a model."""
    return Reply(value=model_object(await call.visor.model(call.path("m"))))


async def tokenize(call: Call[TokenizeBody, NoQuery]) -> Reply:
    """Token ids of a text."""
    body = call.body
    tokens = await call.visor.tokenize(body.model, body.prompt, body.add_special_tokens)
    words: list[str] | None = None
    if body.return_token_strs:
        words = [await call.visor.detokenize(body.model, (token,)) for token in tokens]
    return Reply(
        value={
            "count": len(tokens),
            "max_model_len": call.host.settings.prompt_tokens,
            "tokens": list(tokens),
            "token_strs": words,
        }
    )


async def detokenize(call: Call[DetokenizeBody, NoQuery]) -> Reply:
    """The text of token ids."""
    text = await call.visor.detokenize(call.body.model, tuple(call.body.tokens))
    return Reply(value={"prompt": text})


async def tokenizer_info(call: Call[Nothing, ModelQuery]) -> Reply:
    """What a client needs to know of the tokenizer."""
    return Reply(value=dict(await call.visor.tokenizer_info(call.query.model)))
