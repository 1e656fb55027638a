"""Versions: lists, diff, verify, and files that are written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from blake3 import blake3

from statevisor.api.cli.main import main


def test_versions_name_the_rule_of_a_mutation(server: Any, cli: Any, shapes: Any) -> None:
    made = shapes.version("alice@3", op="mutate", rule="decay", parents=["alice@2"], digest=None)
    server.answer("GET", "/v1/actors/alice/versions", shapes.listing(made, key="handle"))

    row = cli("versions", "alice").out.splitlines()[1].split()

    assert row[:4] == ["alice@3", "decay", "7", "alice@2"]


def test_diff_shows_layers(server: Any, cli: Any, shapes: Any) -> None:
    layer = {"family": "wkv", "layer": 1, "norm_a": 1.5, "norm_b": 0.0, "distance": 1.5}
    answer = {
        "a": shapes.version("a@1"),
        "b": shapes.version("b@1"),
        "common_ancestor": "a@0",
        "shared_tokens": 5,
        "tokens_a": [1],
        "tokens_b": [],
        "families": [{**layer, "cosine": None}],
    }
    server.answer("GET", "/v1/versions/a@1/diff/b@1", answer)

    ran = cli("diff", "a@1", "b@1")

    assert ran.code == 0
    assert "common_ancestor:  a@0" in ran.out
    assert ran.out.splitlines()[-1].split() == ["wkv", "1", "1.5", "0", "1.5", "-"]


def test_verify_that_fails_is_a_failure(server: Any, cli: Any) -> None:
    found = {"ok": False, "checked": 3, "digest": "blake3:a", "expected": "blake3:b"}
    server.answer("POST", "/v1/versions/a@1/verify", found)

    ran = cli("verify", "a@1", "-o", "json")

    assert ran.code == 1
    assert json.loads(ran.out) == found
    assert "error (version_unproved): a@1 does not follow from its journal" in ran.err
    assert "next: Compare it with its neighbours: `statevisor diff a@1 OTHER`." in ran.err
    server.answer("POST", "/v1/versions/a@2/verify", {**found, "ok": True})
    assert cli("verify", "a@2").code == 0


IMAGE = b"image" * 1000
DIGEST = f"blake3:{blake3(IMAGE).hexdigest()}"


def test_export_writes_the_bytes_and_says_their_digest(
    server: Any, cli: Any, shapes: Any, tmp_path: Path
) -> None:
    server.answer("GET", "/v1/versions/a@1/export", raw=IMAGE)
    server.answer("GET", "/v1/versions/a@1", shapes.version("a@1", digest=DIGEST))

    ran = cli("export", "a@1", str(tmp_path / "a.st"))

    assert ran.code == 0
    assert DIGEST in ran.out
    assert (tmp_path / "a.st").read_bytes() == IMAGE
    assert [file.name for file in tmp_path.iterdir()] == ["a.st"]


def test_a_bit_that_flips_on_the_way_is_found(
    server: Any, cli: Any, shapes: Any, tmp_path: Path
) -> None:
    server.answer("GET", "/v1/versions/a@1/export", raw=IMAGE[:-1] + b"d")
    server.answer("GET", "/v1/versions/a@1", shapes.version("a@1", digest=DIGEST))

    ran = cli("export", "a@1", str(tmp_path / "a.st"))

    assert ran.code == 1
    assert "image_corrupt" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_failed_export_leaves_the_old_file(server: Any, cli: Any, tmp_path: Path) -> None:
    file = tmp_path / "a.st"
    file.write_bytes(b"old")
    server.refuse("GET", "/v1/versions/a@1/export", 500, "image_corrupt")

    assert cli("export", "a@1", str(file)).code == 1
    assert file.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["a.st"]


def test_export_into_a_missing_folder_is_a_usage_error(
    server: Any, cli: Any, tmp_path: Path
) -> None:
    server.answer("GET", "/v1/versions/a@1/export", raw=b"image")

    ran = cli("export", "a@1", str(tmp_path / "no" / "a.st"))

    assert ran.code == 2
    assert "cannot write" in ran.err


def test_import_sends_the_file(server: Any, cli: Any, shapes: Any, tmp_path: Path) -> None:
    (tmp_path / "a.st").write_bytes(b"image" * 1000)
    server.answer("POST", "/v1/versions/import", shapes.version("bob@0", op="import"), status=201)

    ran = cli("import", str(tmp_path / "a.st"), "--name", "bob", "--digest", DIGEST)

    assert ran.code == 0
    assert "bob@0" in ran.out
    assert server.asked[0].body == b"image" * 1000
    assert server.asked[0].query == {"name": "bob", "digest": DIGEST}


def test_import_of_a_missing_file_is_a_usage_error(server: Any, cli: Any) -> None:
    assert cli("import", "/nowhere/a.st").code == 2
    assert server.asked == []


def test_a_cut_export_is_the_networks_fault_and_leaves_nothing(rude: str, tmp_path: Path) -> None:
    assert main(["export", "a@1", str(tmp_path / "a.st"), "--url", rude]) == 5
    assert list(tmp_path.iterdir()) == []


def test_tags_are_the_versions_that_have_one(server: Any, cli: Any, shapes: Any) -> None:
    server.answer(
        "GET",
        "/v1/actors/alice/versions",
        shapes.listing(
            shapes.version("alice@0"),
            shapes.version("alice@1", tags=["good", "best"], labels={"run": "7"}),
            key="handle",
        ),
    )

    lines = cli("tags", "alice").out.splitlines()

    assert len(lines) == 2
    assert lines[0].split()[-3:] == ["TAGS", "LABELS", "AGE"]
    assert lines[1].split()[-3:-1] == ["good,best", "run=7"]
