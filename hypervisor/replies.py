"""Stored results of Idempotency-Keys back into records and views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statevisor.hypervisor.commands import TurnView
from statevisor.hypervisor.plan import Logprobs
from statevisor.hypervisor.records import ActorRecord, VersionRecord
from statevisor.hypervisor.vocab import FinishReason, Op


def revive_actor(stored: Mapping[str, Any]) -> ActorRecord:
    """An actor as it was when the operation committed."""
    return ActorRecord(**stored)


def revive_version(stored: Mapping[str, Any]) -> VersionRecord:
    """A version as it was when the operation committed."""
    fields = dict(stored)
    fields["op"] = Op(fields["op"])
    fields["parents"] = tuple(fields["parents"])
    fields["tags"] = tuple(fields["tags"])
    return VersionRecord(**fields)


def revive_turn(stored: Mapping[str, Any]) -> TurnView:
    """A finished turn."""
    fields = dict(stored)
    fields["finish"] = FinishReason(fields["finish"])
    fields["token_ids"] = tuple(fields["token_ids"])
    if fields["logprobs"] is not None:
        fields["logprobs"] = tuple(lp and _revive_logprobs(lp) for lp in fields["logprobs"])
    return TurnView(**fields)


def _revive_logprobs(stored: Mapping[str, Any]) -> Logprobs:
    top = tuple((token, value) for token, value in stored["top"])
    return Logprobs(chosen=stored["chosen"], top=top)
