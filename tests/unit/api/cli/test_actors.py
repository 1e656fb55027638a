"""Commands about actors: what is asked for and what is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest


def test_ls_follows_pages_and_aligns_columns(server: Any, cli: Any, shapes: Any) -> None:
    page = shapes.listing
    server.answer("GET", "/v1/actors", page(shapes.actor("alice"), more=True))
    server.answer("GET", "/v1/actors", page(shapes.actor("a-much-longer-name", pinned=True)))

    ran = cli("ls", "--status", "idle", "-l", "team=red")

    assert ran.code == 0
    lines = ran.out.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "alice", "a-much-longer-name"]
    assert len({line.index("gpu") for line in lines[1:]}) == 1
    assert [asked.query.get("after") for asked in server.asked] == [None, "alice"]
    assert server.asked[0].query == {"limit": "200", "status": "idle", "label": "team=red"}


def test_json_is_the_whole_answer(server: Any, cli: Any, shapes: Any) -> None:
    server.answer("GET", "/v1/actors/alice", shapes.actor("alice", labels={"é": "ü"}))

    assert json.loads(cli("info", "alice", "--output", "json").out)["labels"] == {"é": "ü"}
    assert json.loads(cli("--output", "json", "info", "alice").out)["name"] == "alice"


def test_yaml_reads_back(server: Any, cli: Any, shapes: Any) -> None:
    import yaml

    server.answer("GET", "/v1/actors/alice", shapes.actor("alice"))

    assert yaml.safe_load(cli("info", "alice", "-o", "yaml").out) == shapes.actor("alice")


def test_create_sends_only_what_was_given(server: Any, cli: Any, shapes: Any) -> None:
    server.answer("POST", "/v1/actors", shapes.actor("alice"), status=201)

    assert cli("create", "alice", "--from", "bob@3", "--seed", "7", "-l", "a=b=c").code == 0
    assert cli("create", "--tokens", "1,2 3").code == 0

    assert server.asked[0].body == {
        "name": "alice",
        "from": "bob@3",
        "seed": 7,
        "labels": {"a": "b=c"},
    }
    assert server.asked[1].body == {"token_ids": [1, 2, 3]}


def test_a_prompt_can_come_from_standard_input(
    server: Any, cli: Any, shapes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("two\nlines\n"))
    server.answer("POST", "/v1/actors", shapes.actor("alice"), status=201)

    assert cli("create", "alice", "--prompt", "-").code == 0
    assert server.asked[0].body["prompt"] == "two\nlines\n"


def test_pin_and_unpin_patch_the_actor(server: Any, cli: Any, shapes: Any) -> None:
    server.answer("PATCH", "/v1/actors/alice", shapes.actor("alice"))

    cli("pin", "alice")
    cli("unpin", "alice")

    assert [asked.body for asked in server.asked] == [{"pinned": True}, {"pinned": False}]


def test_label_replaces_all_labels_and_none_clears_them(server: Any, cli: Any, shapes: Any) -> None:
    server.answer("PATCH", "/v1/actors/alice", shapes.actor("alice"))

    cli("label", "alice", "team=red", "x=1")
    cli("label", "alice")

    assert [asked.body for asked in server.asked] == [
        {"labels": {"team": "red", "x": "1"}},
        {"labels": {}},
    ]


def test_rm_deletes_each_and_stops_at_the_first_failure(server: Any, cli: Any) -> None:
    server.answer("DELETE", "/v1/actors/alice", status=204)
    server.refuse("DELETE", "/v1/actors/bob", 404, "actor_not_found")

    ran = cli("rm", "alice", "bob", "carol")

    assert ran.code == 3
    assert "alice deleted" in ran.out
    assert [asked.path for asked in server.asked] == ["/v1/actors/alice", "/v1/actors/bob"]


def test_names_are_quoted_in_paths(server: Any, cli: Any) -> None:
    cli("info", "../admin?x=1")

    assert server.asked[0].path == "/v1/actors/../admin?x=1"  # decoded: one segment, no query
    assert server.asked[0].query == {}


def test_a_bad_label_is_a_usage_error(server: Any, cli: Any) -> None:
    assert cli("create", "alice", "-l", "novalue").code == 2
    assert server.asked == []


def test_labels_are_shown(server: Any, cli: Any, shapes: Any) -> None:
    labelled = shapes.actor("alice", labels={"team": "red", "n": "1"})
    server.answer("GET", "/v1/actors", shapes.listing(labelled, shapes.actor("bob")))

    lines = cli("ls").out.splitlines()

    column = lines[0].split().index("LABELS")
    assert [line.split()[column] for line in lines[1:]] == ["team=red,n=1", "-"]
