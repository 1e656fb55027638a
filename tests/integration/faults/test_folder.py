"""A data folder that is damaged, taken away or wanted twice, under a whole server."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from statevisor.api.cli.main import main


def pages_of(data: Path, name: str) -> list[int]:
    """The pages of a table or an index, by their numbers from 1."""
    db = sqlite3.connect(data / "catalog.db")
    try:
        root = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
        return [root[0]]
    finally:
        db.close()


def rest(serve: Any, *names: str) -> Path:
    """A folder whose actors sleep and whose log is folded into the database."""
    server = serve()
    server.create(*names)
    for name in names:
        server.say(name)
    assert server.stop()[0] == 0
    db = sqlite3.connect(server.data / "catalog.db")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    data: Path = server.data
    return data


def spoil(data: Path, page: int) -> None:
    """What a bad sector looks like."""
    with (data / "catalog.db").open("r+b") as file:
        nbytes = int.from_bytes(file.read(18)[16:], "big")  # of a page, says the file's header
        file.seek((page - 1) * nbytes)
        file.write(b"\xa5" * nbytes)


def fsck(data: Path, *more: str) -> int:
    return int(main(["admin", "fsck", "--data", str(data), *more]))


def test_a_page_that_only_one_request_reads_is_refused_and_the_rest_goes_on(
    serve: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    data = rest(serve, "a", "b")
    (page,) = pages_of(data, "version_term")
    spoil(data, page)
    server = serve()

    status, told = server.ask("GET", "/v1/versions?rule=decay")
    assert (status, told["code"]) == (500, "catalog_corrupt")
    assert "fsck" in told["hint"]
    assert server.say("a") == server.say("b"), "what does not read that page goes on"
    assert server.stop()[0] == 0
    assert fsck(data) == 1
    assert "database" in capsys.readouterr().out


def test_a_page_that_the_start_needs_refuses_it_with_the_next_step(serve: Any) -> None:
    data = rest(serve, "a", "b")
    intact = data.with_name("intact")
    shutil.copytree(data, intact)
    (page,) = pages_of(data, "actor")
    spoil(data, page)
    server = serve(ready=False)
    code, said = server.end()
    assert code != 0
    assert "catalog_corrupt" in said
    assert "next:" in said

    restored = serve(data="intact")
    assert restored.say("a") == restored.say("b")


def test_a_page_damaged_while_it_serves_ends_it_at_the_next_write_there(serve: Any) -> None:
    data = rest(serve, "a", "b")
    (page,) = pages_of(data, "operation")
    server = serve()
    spoil(data, page)
    told = server.heard("a")

    key = {"Idempotency-Key": "k"}
    server.dies_over("POST", "/v1/actors/a/append", {"prompt": "x"}, headers=key)
    server.ended_with("catalog is damaged")

    server = serve()
    assert server.heard("a") == told, "the group is not committed"
    assert server.say("b"), "what does not touch the page goes on"


@pytest.mark.parametrize("how", ["removed", "moved", "replaced", "its log removed"])
def test_a_folder_that_is_taken_away_ends_the_process_at_the_next_write(
    serve: Any, how: str
) -> None:
    """SQLite would go on in files that nobody finds again."""
    server = serve()
    server.create("a", "twin")
    said = server.say("a")
    away = server.data.with_name("away")
    if how == "moved":
        server.data.rename(away)
    elif how == "removed":
        shutil.rmtree(server.data)
    elif how == "replaced":
        server.data.rename(away)
        shutil.copytree(away, server.data)
    else:
        (server.data / "catalog.db-wal").rename(away)
    assert server.good("GET", "/health")["status"] == "ok"

    server.dies_over("POST", "/v1/actors/a/append", {"prompt": "x"})

    server.ended_with("was removed or replaced")
    if how in ("moved", "replaced"):
        again = serve(data="away")
        assert said == again.say("twin")
        assert len(again.heard("a")) == len(again.heard("twin"))


def test_an_image_file_that_lost_its_name_ends_the_process_before_it_is_trusted(
    serve: Any,
) -> None:
    server = serve()
    server.create("a", "b", "twin")
    server.sleep("a")
    for path in (server.data / "images").glob("*.slab"):
        path.unlink()
    server.dies_over("POST", "/v1/actors/b/hibernate", {"tier": "nvme"})
    server.ended_with(".slab: ", "removed")

    server = serve()
    assert server.say("a") == server.say("b") == server.say("twin")


def test_a_second_server_is_refused_until_the_first_is_dead(serve: Any) -> None:
    first = serve()
    first.create("a", "twin")
    said = first.say("a")

    code, told = serve(ready=False).end()
    assert (code, "in use by process" in told) == (5, True)
    assert "listening" not in told
    first.create("b")

    first.kill()
    second = serve()
    assert said == second.say("twin")
    assert second.say("a") == second.say("twin")


def test_a_folder_that_was_damaged_at_rest_is_refused_with_the_next_step(
    serve: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    data = rest(serve, "a", "twin")
    spoil(data, 1)
    code, said = serve(ready=False).end()
    assert code != 0
    assert "catalog_corrupt" in said
    assert "fsck" in said

    assert fsck(data, "--repair", "--model", "toy") == 1
    assert "catalog_unreadable" in capsys.readouterr().out
    (data / "catalog.db").rename(data / "catalog.db.damaged")
    for path in data.glob("catalog.db-*"):
        path.unlink()
    code, said = serve(ready=False).end()
    assert (code, "no catalog" in said) == (5, True)
    assert fsck(data, "--repair", "--model", "toy") == 0
    server = serve()
    found = server.good("GET", "/v1/actors")["data"]
    assert len(found) == 1, "equal states are one image"
    assert server.say(found[0]["name"])


def change_run(data: Path, name: str) -> None:
    """Flip a bit of an actor's last tokens at rest."""
    db = sqlite3.connect(data / "catalog.db")
    query = """SELECT r.rowid, r.data FROM token_run r JOIN actor a ON a.segment = r.segment
               WHERE a.name = ? ORDER BY r.start DESC"""
    number, tokens = db.execute(query, (name,)).fetchone()
    changed = bytes([*tokens[:-4], tokens[-4] ^ 1, *tokens[-3:]])
    db.execute("UPDATE token_run SET data = ? WHERE rowid = ?", (changed, number))
    db.commit()
    db.close()


def test_a_token_that_changed_on_disk_is_not_served_and_its_neighbours_do_not_notice(
    serve: Any,
) -> None:
    server = serve()
    server.create("a", "b", "twin")
    for name in ("a", "b", "twin"):
        server.say(name)
    server.sleep("b")
    change_run(server.data, "a")

    assert server.refused("GET", "/v1/actors/a/transcript") == (500, "catalog_corrupt")
    assert server.say("b") == server.say("twin")
    findings = server.good("POST", "/v1/admin/fsck")["findings"]
    assert [(one["kind"], one["actor"]) for one in findings] == [
        ("run_damaged", server.good("GET", "/v1/actors/a")["id"])
    ]
    server.kill()  # the state is in no image: it would have to be made of these tokens

    server = serve()
    assert server.refused("POST", "/v1/actors/a/generate", {}) == (500, "catalog_corrupt")
    assert server.say("b") == server.say("twin")
    server.good("POST", "/v1/actors/a/rollback", {"to": "a@0", "rng": "inherit"})
    server.say("a")


def test_a_journal_row_that_changed_is_not_read_and_the_start_says_so(serve: Any) -> None:
    server = serve()
    server.create("a")
    long = {"prompt": "and?", "max_tokens": 100_000, "ignore_eos": True}
    connection, answer = server.stream("/v1/actors/a/generate", long)
    for _ in range(60):
        answer.readline()
    server.kill()
    connection.close()
    db = sqlite3.connect(server.data / "catalog.db")
    number, group = db.execute("SELECT id, data FROM journal ORDER BY id LIMIT 1").fetchone()
    changed = bytes([*group[:-1], group[-1] ^ 1])
    db.execute("UPDATE journal SET data = ? WHERE id = ?", (changed, number))
    db.commit()
    db.close()

    code, said = serve(ready=False).end()
    assert code == 1, said
    assert f"journal row {number} is damaged" in said
    assert "next:" in said
