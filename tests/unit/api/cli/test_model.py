"""Models and administration."""

from __future__ import annotations

from typing import Any

MODEL = {
    "object": "model",
    "id": "demo",
    "family": "rwkv7",
    "state_bytes": 4096,
    "slots": 8,
    "fingerprints": {"build": "abcdef"},
}


def test_models(server: Any, cli: Any) -> None:
    server.answer("GET", "/v1/models", {"data": [MODEL]})
    server.answer("GET", "/v1/models/demo", MODEL)

    assert cli("model", "ls").out.splitlines()[1].split()[:3] == ["demo", "rwkv7", "4.0"]
    assert "family:" in cli("model", "info", "demo").out


def test_a_drain_that_left_someone_behind_is_a_failure(server: Any, cli: Any) -> None:
    done = {"object": "drain", "hibernated": 2, "images": 2, "failed": []}
    server.answer("POST", "/v1/admin/drain", done)
    server.answer("POST", "/v1/admin/drain", {**done, "failed": ["alice"]})

    assert cli("admin", "drain").code == 0
    ran = cli("admin", "drain")
    assert "error (drain_incomplete): 1 actors" in ran.err
    assert ran.code == 1
    assert "1 actors" in ran.err
