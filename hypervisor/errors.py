"""The one error tree of statevisor.

Every error a caller can meet has a stable `code`; the class docstring is the default message and
`hint` says what to do next. Edges translate third-party errors into this tree where they arise.
"""

from __future__ import annotations


class StatevisorError(Exception):
    """Something went wrong inside statevisor."""

    code = "internal"
    #: The next step for the caller, shown beside the message.
    hint = "This is a fault of the server; look at its log for the request id."

    def __init__(self, detail: str | None = None, *, hint: str | None = None) -> None:
        self.detail = detail or (type(self).__doc__ or "").strip()
        if hint is not None:
            self.hint = hint
        super().__init__(self.detail)


class InvalidRequest(StatevisorError):
    """The request is malformed."""

    code = "invalid_request"
    hint = "Compare the request with the schema at /openapi.json."

    def __init__(
        self,
        detail: str | None = None,
        *,
        hint: str | None = None,
        fields: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(detail, hint=hint)
        self.fields = fields  #: (path of the field, what is wrong with it)


class MalformedRequest(InvalidRequest):
    """The bytes cannot be read as an HTTP request."""

    hint = "Send HTTP/1.1: a request line, then headers, each of them well-formed."


class HeadLate(InvalidRequest):
    """The head of a request did not arrive in time."""

    code = "request_timeout"
    hint = "Send the request line and all headers at once, on a new connection."


class MalformedBody(InvalidRequest):
    """The body cannot be read as what its Content-Type says."""

    hint = "Send one complete JSON or msgpack object without duplicate keys."


class InvalidCursor(InvalidRequest):
    """`after` is not the end of a page of this list."""

    code = "invalid_cursor"
    hint = "Send the `last_id` of the page before; leave `after` out for the first page."


class UnsupportedMedia(InvalidRequest):
    """The server does not read this Content-Type."""

    hint = "Send application/json or application/msgpack."


class ContextLengthExceeded(InvalidRequest):
    """The input is longer than this server accepts in one request."""

    code = "context_length_exceeded"
    hint = "Send the text in several appends."


class CapabilityMissing(InvalidRequest):
    """The guest cannot do this."""

    code = "capability_missing"
    hint = "See `capabilities` at /v1/models."


class IdempotencyMismatch(InvalidRequest):
    """This Idempotency-Key was used before with another request."""

    code = "idempotency_mismatch"
    hint = "Use a new key for a new request."


class InvalidApiKey(StatevisorError):
    """The API key is missing or unknown."""

    code = "invalid_api_key"
    hint = "Send `Authorization: Bearer KEY`."


class Forbidden(StatevisorError):
    """The API key does not have this scope."""

    code = "forbidden"
    hint = "Use a key with the scope that the route names."


class NotFound(StatevisorError):
    """There is no such thing."""

    code = "not_found"
    hint = "See the list of routes at /openapi.json."


class MethodNotAllowed(StatevisorError):
    """The path exists, but not with this method."""

    code = "method_not_allowed"
    hint = "See the header Allow."


class ModelNotFound(NotFound):
    """No model of this name is loaded."""

    code = "model_not_found"
    hint = "`statevisor model ls` lists them; over HTTP it is GET /v1/models."


class ActorNotFound(NotFound):
    """There is no actor of this name or id."""

    code = "actor_not_found"
    hint = "`statevisor ls` lists the names; over HTTP it is GET /v1/actors."


class VersionNotFound(NotFound):
    """There is no version of this handle or tag."""

    code = "version_not_found"
    hint = "`statevisor versions ACTOR` lists them; over HTTP, GET /v1/actors/{a}/versions."


class Conflict(StatevisorError):
    """The state of the thing forbids this now."""

    code = "conflict"


class ActorBusy(Conflict):
    """The actor's mailbox is full."""

    code = "actor_busy"
    hint = "Retry after the running turn has ended, or cancel it."


class ActorExists(Conflict):
    """An actor of this name exists."""

    code = "actor_exists"
    hint = "Choose another name, or leave the name out."


class InvalidTransition(Conflict):
    """The actor's power does not allow this."""

    code = "invalid_transition"
    hint = "See the actor's status."


class IncompatibleImage(Conflict):
    """The image belongs to another layout, other weights or another build."""

    code = "incompatible_image"
    hint = "Load it under the build that wrote it; see `fingerprints` at /v1/models."


class GenerationConflict(StatevisorError):
    """The actor changed since the generation named in If-Match."""

    code = "generation_conflict"
    hint = "Read the actor again and repeat with its generation."


class Fenced(GenerationConflict):
    """A stale owner tried to write: the actor's epoch has moved on."""

    hint = "Another process owns this data folder now; stop this one."


class PayloadTooLarge(StatevisorError):
    """The body is larger than this server accepts."""

    code = "payload_too_large"
    hint = "Split the request."


class HeadTooLarge(PayloadTooLarge):
    """The request line or a header is larger than this server reads."""

    hint = "Shorten it to 8000 bytes; what is longer belongs into the body."


class QuotaExceeded(StatevisorError):
    """A quota is used up."""

    code = "quota_exceeded"
    hint = "Retry later, or free what you hold."


class Unavailable(StatevisorError):
    """The server cannot do this now."""

    code = "unavailable"
    hint = "Retry after the time in Retry-After."


class NoFreeSlot(Unavailable):
    """All slots are held by actors that cannot be evicted."""

    code = "no_free_slot"
    hint = "Retry later, unpin actors, or start the server with more --slots."


class ModelLoading(Unavailable):
    """The model is still loading."""

    code = "model_loading"
    hint = "Ask again in a few seconds; /ready answers 200 when the server takes work."


class Draining(Unavailable):
    """The server is shutting down and takes no new work."""

    code = "draining"
    hint = "Retry at the server that takes over."


class ImageCorrupt(StatevisorError):
    """The bytes of an image do not match their digest."""

    code = "image_corrupt"
    hint = "The bytes are not served. Roll back to another version."


class CatalogCorrupt(StatevisorError):
    """The catalog's file is damaged where this request reads or writes it."""

    code = "catalog_corrupt"
    hint = "Stop the server and run `statevisor admin fsck --data DIR`; restore a backup."


class FileCorrupt(ImageCorrupt):
    """The file that was sent is not an intact image."""

    hint = "Export it again and compare the digest."


class ActorQuarantined(Conflict):
    """The actor's state is damaged or not finite; it is not scheduled."""

    code = "actor_quarantined"
    hint = "Roll back to an earlier version."


class CheckpointInvalid(StatevisorError):
    """The model checkpoint is damaged, partial or of another family."""

    code = "checkpoint_invalid"
    hint = "Compare the folder with the model's source."


class AnswerUnreadable(StatevisorError):
    """What answered does not speak as a statevisor does."""

    code = "answer_unreadable"
    hint = "Is there a statevisor behind this URL?"


class Unfit(StatevisorError):
    """This machine or its data folder is not fit to serve."""

    code = "unfit"
    hint = "Do what stands behind `next` under each line that fails, then run it again."


class VersionUnproved(StatevisorError):
    """A version does not follow from its journal."""

    code = "version_unproved"
    hint = "Compare it with its neighbours: `statevisor diff VERSION OTHER`."


class DamageFound(StatevisorError):
    """A part of the data folder is damaged."""

    code = "damage_found"
    hint = "Do what stands behind `next` under each line."


class DrainIncomplete(StatevisorError):
    """A drain could not bring every actor to disk."""

    code = "drain_incomplete"
    hint = "Their journals are complete, but a new build cannot replay them: look at each."
