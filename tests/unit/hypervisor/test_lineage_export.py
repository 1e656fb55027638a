import json
import re

import pytest

from statevisor.hypervisor.commands import LineageView
from statevisor.hypervisor.lineage_export import (
    dot,
    dot_stream,
    mermaid,
    mermaid_stream,
    prov,
    prov_stream,
)
from statevisor.hypervisor.records import VersionRecord
from statevisor.hypervisor.vocab import Op


def version(name, seq, op=Op.TURN, **rest):
    return VersionRecord(
        actor_id=f"act_{name}",
        actor=name,
        seq=seq,
        segment=1,
        position=10 * seq,
        op=op,
        created_at=1_767_323_045_000_006,
        **rest,
    )


@pytest.fixture
def view():
    return LineageView(
        nodes=(
            version("alice", 0, Op.CREATE),
            version(
                "alice",
                1,
                Op.MUTATE,
                rule="decay",
                rule_version=1,
                params={"alpha": 0.5},
                digest="blake3:ab",
                agent='Dr. "Ä"',
                reason="why",
                tags=("best",),
            ),
            version("bob", 0, Op.FORK, drift=True),
        ),
        edges=(
            ("alice@0", "alice@1", "mutate"),
            ("alice@1", "bob@0", "fork"),
            ("eve@5", "alice@0", "fork"),
        ),
        truncated=True,
    )


def test_dot_has_every_node_and_edge(view):
    text = dot(view)
    assert text.startswith("digraph lineage {")
    assert '"alice@1" [label="alice@1\\nmutate decay at 10\\nbest"];' in text
    assert '"alice@1" -> "bob@0" [label="fork"];' in text
    assert '"bob@0" [label="bob@0\\nfork at 0, drift", style=dashed];' in text
    assert "…" in text
    assert text.count('"') % 2 == 0


def test_mermaid_names_also_what_only_edges_name(view):
    lines = mermaid(view).splitlines()
    assert lines[0] == "flowchart LR"
    names = dict(re.match(r'  (\w+)\["([^<"]*)', line).groups() for line in lines[1:5])
    assert set(names.values()) == {"alice@0", "alice@1", "bob@0", "eve@5"}
    by_handle = {handle: name for name, handle in names.items()}
    assert f"  {by_handle['eve@5']} -->|fork| {by_handle['alice@0']}" in lines


def test_mermaid_takes_any_text():
    odd = version("a", 0, Op.MUTATE, rule='x"]|-->', tags=("t",))
    text = mermaid(LineageView(nodes=(odd,), edges=(), truncated=False))
    assert 'x"]' not in text
    assert "#34;" in text


def test_prov_follows_the_submission(view):
    document = prov(view)
    assert document["prefix"] == {"sv": "urn:statevisor:"}
    entities, activities = document["entity"], document["activity"]
    for relation, ends in (
        ("wasGeneratedBy", {"prov:entity": entities, "prov:activity": activities}),
        (
            "wasDerivedFrom",
            {"prov:generatedEntity": entities, "prov:usedEntity": entities},
        ),
        ("used", {"prov:activity": activities, "prov:entity": entities}),
        ("wasAssociatedWith", {"prov:activity": activities, "prov:agent": document["agent"]}),
    ):
        for fields in document[relation].values():
            for end, known in ends.items():
                assert fields[end] in known
    deed = activities["sv:made-alice@1"]
    assert deed["sv:rule"] == "decay"
    assert json.loads(deed["sv:params"]) == {"alpha": 0.5}
    assert deed["prov:endTime"] == "2026-01-02T03:04:05.000006+00:00"
    assert [agent["prov:label"] for agent in document["agent"].values()] == ['Dr. "Ä"']
    assert all(re.fullmatch(r"sv:[\w@%.-]+", name) for name in document["agent"])
    json.dumps(document, allow_nan=False)


def test_an_empty_graph_is_still_a_document():
    empty = LineageView(nodes=(), edges=(), truncated=False)
    assert dot(empty).endswith("}\n")
    assert mermaid(empty) == "flowchart LR\n"
    assert prov(empty) == {"prefix": {"sv": "urn:statevisor:"}}


@pytest.fixture
def walk(view):
    """The graph of `view` in parts, none of which is cut; the edge from nowhere comes last."""

    async def parts():
        for node in view.nodes:
            edges = tuple(edge for edge in view.edges if edge[1] == node.handle)
            yield LineageView(nodes=(node,), edges=edges, truncated=False)

    return parts


async def text(stream):
    return "".join([piece async for piece in stream])


def whole(view):
    """The same graph in the order of the parts."""
    edges = [edge for node in view.nodes for edge in view.edges if edge[1] == node.handle]
    return LineageView(nodes=view.nodes, edges=tuple(edges), truncated=False)


async def test_a_stream_of_dot_says_what_the_whole_says(view, walk):
    streamed, told = await text(dot_stream(walk())), dot(whole(view))
    assert sorted(streamed.splitlines()) == sorted(told.splitlines())
    assert streamed.startswith("digraph lineage {\n")
    assert streamed.endswith("}\n")


async def test_a_stream_of_mermaid_says_what_the_whole_says(view, walk):
    lines = (await text(mermaid_stream(walk()))).splitlines()
    assert lines[0] == "flowchart LR"
    nodes = dict(
        found.groups() for line in lines if (found := re.match(r'  (\w+)\["([^<"]*)', line))
    )
    assert sorted(nodes.values()) == ["alice@0", "alice@1", "bob@0"]
    by_handle = {handle: name for name, handle in nodes.items()}
    assert f"  {by_handle['alice@1']} -->|fork| {by_handle['bob@0']}" in lines
    assert len(lines) == 1 + len(view.nodes) + len(view.edges)


@pytest.mark.parametrize("names", [("a.b", "a_2e_b"), ("a-1", "a.1"), ("A", "a")])
async def test_no_two_handles_are_one_node_of_mermaid(names):
    async def parts():
        nodes = tuple(version(name, 0) for name in names)
        yield LineageView(nodes=nodes, edges=(), truncated=False)

    lines = (await text(mermaid_stream(parts()))).splitlines()
    assert len({line.split("[")[0] for line in lines[1:]}) == 2


async def test_a_stream_of_prov_is_the_whole_document(view, walk):
    told = prov(whole(view))
    del told["entity"]["sv:eve@5"]  # a walk goes on until nobody is a stranger
    assert json.loads(await text(prov_stream(walk))) == told


async def test_a_stream_of_nothing_is_still_a_document():
    async def parts():
        for view in ():
            yield view

    assert json.loads(await text(prov_stream(parts))) == {"prefix": {"sv": "urn:statevisor:"}}
    assert (await text(dot_stream(parts()))).endswith("}\n")
