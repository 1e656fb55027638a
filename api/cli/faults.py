"""Errors at the command line: rebuilt from an answer, printed, turned into an exit code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer

from statevisor.hypervisor.errors import (
    Conflict,
    GenerationConflict,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    StatevisorError,
    Unavailable,
)

FAILURE, USAGE, NOT_FOUND, CONFLICT, UNAVAILABLE = 1, 2, 3, 4, 5

_EXIT_CODES: tuple[tuple[type[StatevisorError], int], ...] = (
    (InvalidRequest, USAGE),
    (NotFound, NOT_FOUND),
    (Conflict, CONFLICT),
    (GenerationConflict, CONFLICT),
    (Unavailable, UNAVAILABLE),
    (QuotaExceeded, UNAVAILABLE),
)
#: For codes this client does not know.
_BY_STATUS: Mapping[int, type[StatevisorError]] = {
    400: InvalidRequest,
    404: NotFound,
    409: Conflict,
    412: GenerationConflict,
    422: InvalidRequest,
    429: QuotaExceeded,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def _family(root: type[StatevisorError]) -> Iterator[type[StatevisorError]]:
    """The class and its descendants, parents first."""
    generation = [root]
    while generation:
        yield from generation
        generation = [child for parent in generation for child in parent.__subclasses__()]


def from_answer(status: int, body: Any) -> StatevisorError:
    """The error that a problem+json body (or an OpenAI-shaped one) speaks of."""
    fields = body if isinstance(body, Mapping) else {}
    if isinstance(fields.get("error"), Mapping):
        fields = fields["error"]
    code = fields.get("code")
    detail = fields.get("detail") or fields.get("message") or fields.get("title")
    kind = next((k for k in _family(StatevisorError) if k.code == code), None)
    error = (kind or _BY_STATUS.get(status, StatevisorError))(
        str(detail or f"the server answered {status}"), hint=fields.get("hint")
    )
    if kind is None and isinstance(code, str):
        error.code = code
    return error


def exit_code(error: StatevisorError) -> int:
    """1 failure, 2 usage, 3 not found, 4 conflict, 5 unavailable."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), FAILURE)


def report(error: StatevisorError) -> None:
    """Print the code, what happened and what to do next, on stderr."""
    typer.secho(f"error ({error.code}): {error.detail}", fg=typer.colors.RED, err=True)
    if error.hint:
        typer.echo(f"  next: {error.hint}", err=True)
