"""Lineage as a tree, a graph and an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from statevisor.api.cli.lineage import tree


def graph(shapes: Any) -> dict[str, Any]:
    version = shapes.version
    nodes = [
        version("alice@0", op="create", position=5),
        version("alice@1", op="snapshot", parents=["alice@0"], tags=["good"]),
        version("bob@0", op="fork", parents=["alice@1"]),
        version("bob@1", op="mutate", rule="blend", parents=["bob@0", "carol@9"]),
        version("carol@0", op="fork", parents=["alice@1"], drift=True),
    ]
    return {"nodes": nodes, "edges": [], "truncated": False}


def test_tree_branches_and_keeps_one_column_for_one_life(shapes: Any) -> None:
    assert list(tree(graph(shapes))) == [
        "alice@0 create at 5",
        "alice@1 snapshot at 7 [good]",
        "├─ bob@0 fork at 7",
        "│  bob@1 mutate blend at 7 +carol@9",
        "└─ carol@0 fork at 7 drift",
    ]


def test_tree_says_when_it_is_cut(shapes: Any) -> None:
    lines = list(tree({**graph(shapes), "truncated": True}))

    assert "--depth" in lines[-1]


def test_a_life_of_many_versions_is_drawn(shapes: Any) -> None:
    nodes = [shapes.version("alice@0")]
    nodes += [shapes.version(f"alice@{n}", parents=[f"alice@{n - 1}"]) for n in range(1, 5000)]

    assert len(list(tree({"nodes": nodes, "edges": []}))) == 5000


def test_formats_are_asked_of_the_server(server: Any, cli: Any, shapes: Any) -> None:
    route = "/v1/actors/alice/lineage"
    server.answer("GET", route, graph(shapes))
    server.answer("GET", route, raw=b"digraph {}\n")

    shown = cli("lineage", "alice", "--format", "json", "--direction", "both")
    words = ("--format", "dot", "--direction", "ancestors", "--depth", "3", "--limit", "50")
    drawn = cli("lineage", "alice", *words)

    assert json.loads(shown.out) == graph(shapes)
    assert drawn.out == "digraph {}\n"
    assert server.asked[1].query == {
        "direction": "ancestors",
        "depth": "3",
        "limit": "50",
        "format": "dot",
    }


@pytest.mark.parametrize("start", ["bob", "bob@1"])
def test_by_default_the_whole_family_is_drawn(
    server: Any, cli: Any, shapes: Any, start: str
) -> None:
    whole = graph(shapes)
    line = {**whole, "nodes": [n for n in whole["nodes"] if n["actor"] != "carol"]}
    kind = "versions" if "@" in start else "actors"
    server.answer("GET", "/v1/actors/bob", shapes.actor("bob", head="bob@1"))
    server.answer("GET", "/v1/versions/bob@1", shapes.version("bob@1"))
    server.answer("GET", f"/v1/{kind}/{start}/lineage", line)
    server.answer("GET", "/v1/versions/alice@0/lineage", whole)

    assert "└─ carol@0" in cli("lineage", start).out
    assert server.asked[-1].query["direction"] == "descendants"


def test_blame_says_when_nothing_touched_the_layer(server: Any, cli: Any) -> None:
    server.answer("GET", "/v1/lineage/blame", raw=b"null")

    ran = cli("blame", "alice@1", "--layer", "2")

    assert (ran.code, ran.out) == (0, "no mutation touched it\n")
    assert server.asked[0].query == {"v": "alice@1", "layer": "2"}


def test_all_of_a_graph_is_copied_as_it_comes(server: Any, cli: Any) -> None:
    server.answer("GET", "/v1/actors/alice/lineage", raw=b'{"object":"edge"}\n' * 3)

    words = ("lineage", "alice", "--direction", "both", "--format", "json", "--all")

    assert cli(*words).code == 0
    assert server.asked[0].query == {"direction": "both", "format": "json", "stream": "true"}
    assert cli("lineage", "alice", "--direction", "both", "--all").code == 2


@pytest.mark.parametrize(("told", "word"), [(True, "yes"), (False, "no")])
def test_ancestry_is_told(server: Any, cli: Any, told: bool, word: str) -> None:
    server.answer("GET", "/v1/lineage/is-ancestor", {"a": "a@1", "b": "t", "is_ancestor": told})

    assert cli("is-ancestor", "a@1", "t").out == f"{word}\n"
    assert server.asked[0].query == {"a": "a@1", "b": "t"}


def test_the_common_ancestor_is_shown(server: Any, cli: Any, shapes: Any) -> None:
    server.answer("GET", "/v1/lineage/common-ancestor", shapes.version("alice@2"))

    ran = cli("common-ancestor", "bob@1", "t")

    assert ran.out.splitlines()[1].startswith("alice@2 ")
    assert server.asked[0].query == {"a": "bob@1", "b": "t"}
    server.refuse("GET", "/v1/lineage/common-ancestor", 404, "version_not_found")
    cli("common-ancestor", "bob@1", "t")
    assert cli("common-ancestor", "bob@1", "t").code == 3


def test_a_tag_has_a_lineage_too(server: Any, cli: Any, shapes: Any) -> None:
    server.refuse("GET", "/v1/actors/good", 404, "actor_not_found")
    server.answer("GET", "/v1/versions/good", shapes.version("alice@1", tags=["good"]))
    server.answer("GET", "/v1/versions/alice@1", shapes.version("alice@1"))
    server.answer("GET", "/v1/versions/alice@1/lineage", graph(shapes))
    server.answer("GET", "/v1/versions/alice@0/lineage", graph(shapes))

    assert "└─ carol@0" in cli("lineage", "good").out
    server.refuse("GET", "/v1/actors/gone", 404, "actor_not_found")
    server.refuse("GET", "/v1/versions/gone", 404, "version_not_found")
    ran = cli("lineage", "gone")
    assert (ran.code, "actor_not_found" in ran.err) == (3, True)
