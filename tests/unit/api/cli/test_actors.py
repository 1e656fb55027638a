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


def deleted(server: Any) -> list[str]:
    return [asked.path for asked in server.asked if asked.method == "DELETE"]


@pytest.fixture
def three(server: Any, shapes: Any) -> None:
    for number, name in enumerate(("alice", "bob", "carol")):
        server.answer("GET", f"/v1/actors/{name}", shapes.actor(name, id=f"act_{number}"))
        server.answer("DELETE", f"/v1/actors/act_{number}", status=204)


@pytest.mark.usefixtures("three")
def test_rm_deletes_each_by_its_id(server: Any, cli: Any) -> None:
    ran = cli("rm", "alice", "carol")

    assert (ran.code, ran.out) == (0, "alice deleted\ncarol deleted\n")
    assert deleted(server) == ["/v1/actors/act_0", "/v1/actors/act_2"]


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("names", [("alice", "a"), ("a", "alice"), ("a", "alice", "b")])
def test_rm_deletes_none_if_one_is_missing(server: Any, cli: Any, names: tuple[str, ...]) -> None:
    for name in set(names) - {"alice"}:
        server.refuse("GET", f"/v1/actors/{name}", 404, "actor_not_found")

    ran = cli("rm", *names)

    assert (ran.code, ran.out, deleted(server)) == (3, "", [])
    assert "Nothing was deleted" in ran.err
    for name in set(names) - {"alice"}:
        assert f"'{name}'" in ran.err


@pytest.mark.usefixtures("three")
def test_rm_deletes_once_who_is_named_twice(server: Any, cli: Any, shapes: Any) -> None:
    server.answer("GET", "/v1/actors/act_0", shapes.actor("alice", id="act_0"))

    ran = cli("rm", "alice", "act_0", "alice")

    assert (ran.code, ran.out) == (0, "alice deleted\n")
    assert deleted(server) == ["/v1/actors/act_0"]


@pytest.mark.usefixtures("three")
def test_rm_stops_where_the_server_refuses(server: Any, cli: Any, shapes: Any) -> None:
    server.answer("GET", "/v1/actors/dora", shapes.actor("dora", id="act_9"))
    server.refuse("DELETE", "/v1/actors/act_9", 409, "conflict")

    ran = cli("rm", "alice", "dora", "bob")

    assert (ran.code, ran.out) == (4, "alice deleted\n")
    assert deleted(server) == ["/v1/actors/act_0", "/v1/actors/act_9"]


def test_names_are_quoted_in_paths(server: Any, cli: Any) -> None:
    cli("info", "../admin?x=1")

    assert server.asked[0].path == "/v1/actors/../admin?x=1"  # decoded: one segment, no query
    assert server.asked[0].query == {}


@pytest.mark.parametrize("words", [("info", ""), ("rm", ""), ("rm", "alice", ""), ("snapshot", "")])
def test_a_name_that_is_empty_is_a_usage_error(
    server: Any, cli: Any, shapes: Any, words: tuple[str, ...]
) -> None:
    server.answer("GET", "/v1/actors/alice", shapes.actor("alice"))

    ran = cli(*words)

    assert (ran.code, deleted(server)) == (2, [])
    assert "next: Is a variable of the shell not set?" in ran.err


def test_a_bad_label_is_a_usage_error(server: Any, cli: Any) -> None:
    assert cli("create", "alice", "-l", "novalue").code == 2
    assert server.asked == []


def test_labels_are_shown(server: Any, cli: Any, shapes: Any) -> None:
    labelled = shapes.actor("alice", labels={"team": "red", "n": "1"})
    server.answer("GET", "/v1/actors", shapes.listing(labelled, shapes.actor("bob")))

    lines = cli("ls").out.splitlines()

    column = lines[0].split().index("LABELS")
    assert [line.split()[column] for line in lines[1:]] == ["team=red,n=1", "-"]
