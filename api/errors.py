"""Errors on the wire: which status a class has, what the body says, and the one middleware.

Native paths answer RFC 9457 problems, OpenAI paths answer OpenAI's shape, both with the same codes.
What is no StatevisorError is a fault of ours: it is logged, and the client is told its request id
and nothing else.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import web

from statevisor.api.codec import JSON, MSGPACK, answer_type, encode
from statevisor.api.host import HOST, OPENAI, REQUEST_ID
from statevisor.hypervisor import errors
from statevisor.hypervisor.errors import InvalidRequest, StatevisorError
from statevisor.hypervisor.ports import Meter

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

STATUS: Mapping[type[StatevisorError], int] = {
    StatevisorError: 500,
    errors.InvalidRequest: 422,
    errors.MalformedRequest: 400,
    errors.HeadLate: 408,
    errors.MalformedBody: 400,
    errors.InvalidCursor: 400,
    errors.UnsupportedMedia: 415,
    errors.ContextLengthExceeded: 422,
    errors.CapabilityMissing: 422,
    errors.IdempotencyMismatch: 422,
    errors.InvalidApiKey: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.MethodNotAllowed: 405,
    errors.ModelNotFound: 404,
    errors.ActorNotFound: 404,
    errors.VersionNotFound: 404,
    errors.Conflict: 409,
    errors.ActorBusy: 409,
    errors.ActorExists: 409,
    errors.InvalidTransition: 409,
    errors.IncompatibleImage: 409,
    errors.GenerationConflict: 412,
    errors.Fenced: 412,
    errors.PayloadTooLarge: 413,
    errors.HeadTooLarge: 431,
    errors.QuotaExceeded: 429,
    errors.Unavailable: 503,
    errors.NoFreeSlot: 503,
    errors.ModelLoading: 503,
    errors.Draining: 503,
    errors.ImageCorrupt: 500,
    errors.CatalogCorrupt: 500,
    errors.FileCorrupt: 422,
    errors.ActorQuarantined: 409,
    errors.CheckpointInvalid: 500,
    # said by commands, by no route
    errors.AnswerUnreadable: 500,
    errors.Unfit: 500,
    errors.VersionUnproved: 500,
    errors.DamageFound: 500,
    errors.DrainIncomplete: 500,
}
#: Seconds after which another try may succeed. A class that is not here is not worth a retry.
RETRY_AFTER_S: Mapping[type[StatevisorError], int] = {
    errors.HeadLate: 1,
    errors.ActorBusy: 1,
    errors.QuotaExceeded: 1,
    errors.Unavailable: 1,
    errors.NoFreeSlot: 1,
    errors.ModelLoading: 2,
    errors.Draining: 5,
}
#: Statuses that client libraries retry unless they are told not to.
_RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504})
#: Of a request whose client went away before the answer: never sent, only counted.
CLIENT_LEFT = 499
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

log = structlog.get_logger(__name__)


def status_of(error: StatevisorError) -> int:
    """The HTTP status; a class that is not listed has that of its nearest listed ancestor."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def problem(error: StatevisorError, request_id: str) -> dict[str, Any]:
    """The RFC 9457 body."""
    status = status_of(error)
    body: dict[str, Any] = {
        "type": f"/docs#code-{error.code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": error.detail,
        "code": error.code,
        "hint": error.hint,
        "request_id": request_id,
    }
    if isinstance(error, InvalidRequest) and error.fields:
        body["errors"] = [{"field": field, "message": message} for field, message in error.fields]
    return body


def openai_error(error: StatevisorError) -> dict[str, Any]:
    """The body that OpenAI's clients read."""
    status = openai_status(error)
    fallback = "invalid_request_error" if status < 500 else "server_error"
    fields = error.fields if isinstance(error, InvalidRequest) else ()
    return {
        "error": {
            "message": error.detail,
            "type": _OPENAI_TYPES.get(status, fallback),
            "param": fields[0][0].partition(".")[2] if fields else None,
            "code": error.code,
        }
    }


def openai_status(error: StatevisorError) -> int:
    """As `status_of`, but a request that is wrong in itself is a 400 there."""
    status = status_of(error)
    return 400 if status == 422 else status


def error_headers(error: StatevisorError, status: int) -> dict[str, str]:
    """What tells a client whether and when to try again."""
    headers = {"Cache-Control": "no-store"}
    wait_s = next((RETRY_AFTER_S[k] for k in type(error).__mro__ if k in RETRY_AFTER_S), None)
    if wait_s is not None:
        headers["Retry-After"] = str(wait_s)
    elif status in _RETRIED:
        headers["x-should-retry"] = "false"
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def error_response(request: web.Request, error: StatevisorError) -> web.Response:
    """The answer to a request that failed."""
    if request.get(OPENAI):
        status, body, media = openai_status(error), openai_error(error), JSON
    else:
        status, body, media = status_of(error), problem(error, request[REQUEST_ID]), "problem"
    if answer_type(request.headers.get("Accept")) == MSGPACK:
        content, kind = encode(body, MSGPACK), MSGPACK
    else:
        content = encode(body, JSON)
        kind = "application/problem+json" if media == "problem" else JSON
    headers = error_headers(error, status)
    return web.Response(status=status, body=content, content_type=kind, headers=headers)


def request_id_of(request: web.Request) -> str:
    """The client's own id if it is a plain word, else a new one."""
    given = request.headers.get("X-Request-Id", "")
    return given if _REQUEST_ID.match(given) else f"req_{secrets.token_hex(12)}"


@web.middleware
async def edge(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Name the request, answer what was raised, log and count the outcome."""
    request[REQUEST_ID] = request_id_of(request)
    began = time.monotonic()
    status = CLIENT_LEFT
    with structlog.contextvars.bound_contextvars(request_id=request[REQUEST_ID]):
        try:
            response = await _answered(request, handler)
            status = response.status
            if not request.content.is_eof():
                # what is left of the body would be taken for the next request, or it for the body
                response.force_close()
        finally:
            _account(request, status, time.monotonic() - began)
    return response


async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except StatevisorError as error:
        if status_of(error) >= 500 and type(error) not in RETRY_AFTER_S:
            log.error("failed", code=error.code, detail=error.detail)
        return error_response(request, error)
    except web.HTTPException as error:
        return _from_framework(request, error)
    except Exception:
        log.exception("unexpected")
        return error_response(request, StatevisorError())


def _from_framework(request: web.Request, error: web.HTTPException) -> web.StreamResponse:
    if error.status < 400:
        raise error
    if error.status == 404:
        return error_response(request, errors.NotFound(f"there is no {request.path[:200]}"))
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        refusal = errors.MethodNotAllowed(f"{request.path[:200]} takes {allowed}")
        response = error_response(request, refusal)
        response.headers["Allow"] = allowed
        return response
    if error.status == 413:
        return error_response(request, errors.PayloadTooLarge())
    refusal_kind = StatevisorError if error.status >= 500 else InvalidRequest
    return error_response(request, refusal_kind(error.reason))


def _account(request: web.Request, status: int, seconds: float) -> None:
    resource = request.match_info.route.resource
    route = resource.canonical if resource else "none"
    account(request.app[HOST].meter, request.method, route, status, seconds)


def account(meter: Meter, method: str, route: str, status: int, seconds: float) -> None:
    """Count and log one answer."""
    labels = {"method": method, "route": route}
    meter.observe("http_request_seconds", seconds, **labels)
    meter.count("http_requests_total", 1, status=str(status), **labels)
    # reads that went well are many, and so are probes of a server that is not ready
    calm = method in ("GET", "HEAD") and (status < 400 or status == 503)
    tell = log.debug if calm else log.info
    tell("request", status=status, ms=round(seconds * 1e3, 2), **labels)
