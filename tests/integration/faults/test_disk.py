"""A disk that is full, fails or lies, under a whole server: what is refused, and what ends it."""

from __future__ import annotations

import errno
from typing import Any

import pytest

WAL, DATABASE, SLAB = ".db-wal", "catalog.db", ".slab"


def test_a_catalog_without_room_refuses_and_goes_on_when_there_is_some(serve: Any) -> None:
    server = serve()
    server.create("a", "twin")
    said = [server.say("a")]
    before = server.heard("a")

    server.fault("write", errno.ENOSPC, WAL)
    for _ in range(2):
        assert server.refused("POST", "/v1/actors/a/append", {"prompt": "x"}) == (
            503,
            "unavailable",
        )
        assert server.refused("POST", "/v1/actors", {"name": "b"}) == (503, "unavailable")
    assert server.heard("a") == before, "nothing half done"
    server.heal()

    said.append(server.say("a"))
    server.create("b")
    assert said == [server.say("twin"), server.say("twin")]
    assert server.good("POST", "/v1/admin/fsck")["ok"]
    assert server.stop()[0] == 0


def test_a_turn_that_meets_a_full_disk_ends_at_a_committed_token(serve: Any) -> None:
    """Also its end cannot be written: the next turn writes it."""
    server = serve()
    server.create("a", "twin")
    stream = {"prompt": "and?", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
    connection, answer = server.stream("/v1/actors/a/generate", stream)
    for _ in range(4 * 20):  # lines of an event and its end
        answer.readline()
    server.fault("write", errno.ENOSPC, WAL)
    rest = answer.read()
    connection.close()
    assert b"event: error" in rest or b'"finish_reason":"error"' in rest.replace(b" ", b"")
    told = server.heard("a")
    assert len(told) > 20, "what was told is there"
    assert server.refused("POST", "/v1/actors/a/append", {"prompt": "x"})[0] == 503
    assert server.heard("a") == told
    server.heal()

    server.say("a")
    assert server.heard("a")[: len(told)] == told
    assert server.good("POST", "/v1/admin/fsck")["ok"]
    count = len(told) - len(server.heard("twin")) - len("and?")
    twin = {"prompt": "and?", "max_tokens": count, "ignore_eos": True}
    server.good("POST", "/v1/actors/twin/generate", twin)
    assert server.heard("twin") == told


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_image_that_cannot_be_written_is_refused_and_its_actor_lives(
    serve: Any, number: int
) -> None:
    server = serve()
    server.create("a", "twin")
    server.say("a")

    server.fault("write", number, SLAB)
    told = server.refused("POST", "/v1/actors/a/hibernate", {"tier": "nvme"})
    assert told == (503, "unavailable")
    server.say("twin")
    assert server.say("a") == server.say("twin"), "no image is needed to go on"
    server.heal()

    server.sleep("a", "twin")
    assert server.say("a") == server.say("twin")
    assert server.good("POST", "/v1/admin/fsck")["ok"]
    assert server.stop()[0] == 0


def test_an_image_that_cannot_be_read_is_made_again(serve: Any) -> None:
    server = serve()
    server.create("a", "twin")
    assert server.say("a") == server.say("twin")
    server.sleep("a", "twin")

    server.fault("read", errno.EIO, SLAB)
    assert server.say("a") == server.say("twin")
    assert server.metric("image_checksum_failures_total") == 2
    server.heal()
    server.sleep("a", "twin")
    assert server.say("a") == server.say("twin")


def test_an_unreadable_image_that_nothing_leads_to_quarantines_its_actor_alone(
    serve: Any,
) -> None:
    server = serve()
    server.create("a", "b", "twin")
    server.good("POST", "/v1/actors/a/mutate", {"rule": "decay", "params": {"alpha": 0.5}})
    server.sleep("a", "b")

    server.fault("read", errno.EIO, SLAB)
    assert server.refused("POST", "/v1/actors/a/generate", {}) == (500, "image_corrupt")
    assert server.refused("POST", "/v1/actors/a/generate", {}) == (409, "actor_quarantined")
    assert server.say("b") == server.say("twin")
    server.heal()
    server.good("POST", "/v1/actors/a/rollback", {"to": "a@0", "rng": "inherit"})
    assert server.good("GET", "/v1/actors/a")["status"] != "quarantined"


@pytest.mark.parametrize("end", [WAL, SLAB], ids=["catalog", "images"])
def test_a_failed_sync_ends_the_process_and_loses_nothing(serve: Any, end: str) -> None:
    server = serve()
    server.create("a", "twin")
    said = server.say("a")
    before = server.heard("a")

    server.fault("sync", errno.EIO, end)
    path, body = ("append", {"prompt": "x"}) if end == WAL else ("hibernate", {"tier": "nvme"})
    server.dies_over("POST", f"/v1/actors/a/{path}", body)
    server.ended_with("catalog" if end == WAL else SLAB)

    server = serve()
    assert server.heard("a")[: len(before)] == before
    assert said == server.say("twin")
    if end == SLAB:
        assert server.say("a") == server.say("twin")
    assert server.good("POST", "/v1/admin/fsck")["ok"]


def test_a_catalog_that_cannot_be_written_ends_the_process(serve: Any) -> None:
    server = serve()
    server.create("a")
    before = server.heard("a")
    server.fault("write", errno.EIO, WAL)
    server.dies_over("POST", "/v1/actors/a/append", {"prompt": "x"})
    server.ended_with("catalog", "I/O error")
    server = serve()
    assert server.heard("a") == before
    assert server.good("POST", "/v1/admin/fsck")["ok"]


@pytest.mark.parametrize("end", ["/data/", DATABASE, WAL, "/lock", SLAB])
def test_what_may_only_be_read_is_told_at_the_start_and_changes_nothing(
    serve: Any, end: str
) -> None:
    server = serve()
    server.create("a", "twin")
    server.sleep("a", "twin")
    server.kill()

    refused = serve(ready=False, fault=("open", errno.EROFS, end))
    code, said = refused.end()
    assert code == 5, said
    assert "next:" in said
    server = serve()
    assert server.say("a") == server.say("twin")
    assert server.good("POST", "/v1/admin/fsck")["ok"]


def test_a_catalog_that_cannot_be_read_refuses_what_needs_it(serve: Any) -> None:
    server = serve()
    server.create("a", "twin")
    assert server.stop()[0] == 0
    server = serve()
    server.fault("read", errno.EIO, DATABASE)
    # SQLite calls a page that the disk cannot give malformed where it reads it for a statement
    said = server.refused("GET", "/v1/versions?rule=decay")
    assert said in ((503, "unavailable"), (500, "catalog_corrupt"))
    server.heal()
    server.good("GET", "/v1/versions?rule=decay")
    assert server.say("a") == server.say("twin")
