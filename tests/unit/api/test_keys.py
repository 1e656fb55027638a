"""Idempotency-Key of operations that have no transaction of their own."""

from __future__ import annotations

import pytest

from statevisor.api import routes
from statevisor.hypervisor.errors import InvalidTransition

KEEPING = {
    "turns_cancel": ("/v1/actors/a/cancel", {}),
    "versions_verify": ("/v1/versions/a@1/verify", {}),
    "tiers_evict": ("/v1/tiers/evict", {"from": "gpu", "to": "host"}),
    "actors_hibernate": ("/v1/actors/a/hibernate", {}),
    "actors_resume": ("/v1/actors/a/resume", {}),
    "ops_drain": ("/v1/admin/drain", {}),
    "admin_gc": ("/v1/admin/gc", {}),
    "admin_fsck": ("/v1/admin/fsck", {}),
    "admin_backup": ("/v1/admin/backup", {"path": "/tmp/copy"}),
}
KEY = {"Idempotency-Key": "k1"}


def test_every_post_that_does_something_keeps_its_key() -> None:
    keeping = {route.name for route in routes.ROUTES if route.keeps}
    assert keeping == set(KEEPING)
    forgetful = {
        route.name
        for route in routes.ROUTES
        if route.method == "POST" and not (route.changes or route.keeps)
    }
    assert forgetful == {"models_tokenize", "models_detokenize"}


@pytest.mark.parametrize("name", KEEPING)
async def test_the_second_answer_is_the_first_and_nothing_is_done(client, visor, name):
    path, body = KEEPING[name]
    first = await client.post(path, json=body, headers=KEY)
    told = await first.json()
    calls = [call[0] for call in visor.calls]
    assert calls[0] == "kept"
    assert calls[-1] == "keep"
    assert len(calls) == 3
    once, kept = visor.calls[-1][1]
    assert (once.key, kept) == ("k1", {"value": told, "status": first.status})

    visor.calls.clear()
    visor.answers["kept"] = kept
    again = await client.post(path, json=body, headers=KEY)

    assert (again.status, await again.json()) == (first.status, told)
    assert [call[0] for call in visor.calls] == ["kept"]


@pytest.mark.parametrize("name", KEEPING)
async def test_without_a_key_nothing_is_kept(client, visor, name):
    path, body = KEEPING[name]
    await client.post(path, json=body)

    assert not {"kept", "keep"} & {call[0] for call in visor.calls}


async def test_a_refusal_is_not_kept(client, visor):
    visor.answers["cancel"] = InvalidTransition("nothing runs")
    response = await client.post("/v1/actors/a/cancel", json={}, headers=KEY)

    assert response.status == 409
    assert "keep" not in {call[0] for call in visor.calls}
