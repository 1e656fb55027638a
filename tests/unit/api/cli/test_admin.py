"""Administration of a server and of a folder at rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GC = {
    "object": "gc",
    "dry_run": True,
    "actors": 1,
    "versions": 2,
    "tokens": 30,
    "removed": [{"reason": "deleted", "images": 2, "bytes": 1 << 20}],
    "kept": [{"reason": "rooted", "images": 1, "bytes": 4096}],
    "freed": {"images": 0, "bytes": 0},
    "waiting": {"images": 2, "bytes": 1 << 20},
}
FSCK = {
    "object": "fsck",
    "ok": False,
    "images": 3,
    "bytes": 9,
    "derived": 0,
    "findings": [
        {
            "kind": "image_damaged",
            "detail": "MiB 0 is damaged",
            "advice": "Run a repair.",
            "actor": "act_1",
            "version": None,
            "repaired": False,
        }
    ],
}


def test_gc_says_what_went_and_what_stays(server: Any, cli: Any) -> None:
    server.answer("POST", "/v1/admin/gc", GC)

    ran = cli("admin", "gc", "--dry-run", "--grace", "1h")

    assert server.asked[0].body == {"dry_run": True, "grace_s": 3600}
    assert "would remove 1 deleted actors, 2 versions, 30 tokens" in ran.out
    assert "would remove 2 images, 1.0 MiB: deleted" in ran.out
    assert "kept 1 images, 4.0 KiB: rooted" in ran.out
    assert "freed by a gc after the grace" in ran.out


def test_fsck_fails_when_something_is_wrong(server: Any, cli: Any) -> None:
    server.answer("POST", "/v1/admin/fsck", FSCK)

    ran = cli("admin", "fsck")

    assert (ran.code, server.asked[0].body) == (1, {})
    assert "found image_damaged (act_1): MiB 0 is damaged" in ran.out
    assert "next: Run a repair." in ran.out
    assert "error (damage_found): 1 things are wrong" in ran.err
    assert json.loads(cli("admin", "fsck", "-o", "json").out) == FSCK


def test_fsck_of_a_server_can_repair(server: Any, cli: Any) -> None:
    mended = {**FSCK, "ok": True, "findings": [{**FSCK["findings"][0], "repaired": True}]}  # type: ignore[index]
    server.answer("POST", "/v1/admin/fsck", mended)

    ran = cli("admin", "fsck", "--repair", "--replay")

    assert (ran.code, server.asked[0].body) == (0, {"repair": True, "replay": True})
    assert "repaired image_damaged" in ran.out


def test_backup_names_a_path_of_the_server(
    server: Any, cli: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    made = {"object": "backup", "path": "/x", "images": 1, "bytes": 2}
    server.answer("POST", "/v1/admin/backup", made)

    assert cli("admin", "backup", "copy.tar").code == 0
    assert server.asked[0].body == {"path": str(tmp_path / "copy.tar")}


def test_the_schema_of_a_folder(cli: Any, tmp_path: Path) -> None:
    assert "no catalog" in cli("admin", "db", "current", "--data", str(tmp_path)).out
    assert not list(tmp_path.iterdir())

    upgraded = cli("admin", "db", "upgrade", "--data", str(tmp_path)).out.split()[-1]

    assert (tmp_path / "catalog.db").exists()
    current = cli("admin", "db", "current", "--data", str(tmp_path)).out
    assert f"{upgraded}; this program has {upgraded}" in current


def test_fsck_of_a_folder_needs_no_server(server: Any, cli: Any, tmp_path: Path) -> None:
    cli("admin", "db", "upgrade", "--data", str(tmp_path))

    ran = cli("admin", "fsck", "--data", str(tmp_path))

    assert (ran.code, server.asked) == (0, [])
    assert "nothing is wrong" in ran.out
    assert cli("admin", "fsck", "--data", str(tmp_path / "no")).code == 2
    assert cli("admin", "fsck", "--data", str(tmp_path), "--replay").code == 2


def test_fsck_of_a_folder_fails_when_its_catalog_is_lost(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "00000001.slab").write_bytes(bytes(8192))

    ran = cli("admin", "fsck", "--data", str(tmp_path))

    assert ran.code == 1
    assert "catalog_lost" in ran.out
    assert cli("admin", "fsck", "--data", str(tmp_path), "--repair").code == 0


def test_what_is_no_backup_is_not_restored(server: Any, cli: Any, tmp_path: Path) -> None:
    (tmp_path / "no.tar").write_bytes(b"no tar")
    new = str(tmp_path / "new")

    for words in ((str(tmp_path / "no.tar"),), (str(tmp_path / "missing"),)):
        ran = cli("admin", "restore", *words, "--data", new)
        assert (ran.code, "next:" in ran.err) == (2, True)
    assert cli("admin", "restore", str(tmp_path), "--data", str(tmp_path)).code == 4
    assert [one.name for one in tmp_path.iterdir()] == ["no.tar"]
    assert server.asked == []


def test_a_folder_that_is_none_is_told_in_words(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "catalog.db").write_bytes(b"nothing" * 1000)

    for words in (("db", "upgrade"), ("fsck",)):
        ran = cli("admin", *words, "--data", str(tmp_path / "file"))
        assert (ran.code in (2, 5), "next:" in ran.err) == (True, True)
    ran = cli("admin", "db", "current", "--data", str(tmp_path / "data"))
    assert (ran.code, "error (catalog_corrupt)" in ran.err) == (1, True)
