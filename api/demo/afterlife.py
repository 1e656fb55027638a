"""The story from the crash on: killed while speaking, restarted, taken back, carried to a file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from itertools import pairwise
from typing import Any

from blake3 import blake3

from statevisor.api.cli.client import Client, path
from statevisor.api.cli.lineage import family as whole_family
from statevisor.api.cli.lineage import tree
from statevisor.api.demo import story
from statevisor.api.demo.life import ASKED, DRAWN, Life
from statevisor.api.demo.machine import Machine
from statevisor.api.demo.person import PROBE, Person
from statevisor.hypervisor.errors import ImageCorrupt, StatevisorError, Unavailable

_LONG = 160  #: tokens of the speech that is interrupted
_HEARD = 24  #: tokens that were streamed before the kill


def crash(life: Life, machine: Machine) -> None:
    """Kill the server while Alice speaks; her twin has said the same undisturbed."""
    screen, report = life.screen, life.report
    screen.act("Alice tells on. In mid-sentence the server is killed (kill -9).")
    whole = life.twin.answer(max_tokens=_LONG, **DRAWN)
    twin_digest = life.twin.digest()
    begun = life.alice.info()["position"]
    heard: list[dict[str, Any]] = []

    def seen(token: dict[str, Any]) -> None:
        heard.append(token)
        if len(heard) == _HEARD:
            machine.kill()

    with suppress(Unavailable):
        life.alice.stream(seen, max_tokens=_LONG, **DRAWN)
    screen.spoke("alice", "", "".join(token["text"] for token in heard) + " —")
    with report.timed("restart"):
        client = machine.start()
    life.client = client
    life.alice, life.twin = life.alice.at(client), life.twin.at(client)
    life.children = [child.at(client) for child in life.children]
    kept = life.alice.tokens()
    said = kept[begun:]
    acknowledged = tuple(token["token_id"] for token in heard)
    life.decide(
        "kill_loses_no_token",
        f"{len(acknowledged)} streamed, {len(said)} kept, {_LONG} asked for",
        streamed_some=len(acknowledged) >= _HEARD,
        killed_in_mid_sentence=len(said) < _LONG,
        all_kept=said[: len(acknowledged)] == acknowledged,
        in_their_places=all(
            kept[t["position"] : t["position"] + 1] == (t["token_id"],) for t in heard
        ),
    )
    rest = life.alice.answer(max_tokens=max(1, _LONG - len(said)), **DRAWN)
    screen.spoke("alice", "(after the restart)", rest.text)
    life.decide(
        "restart_continues_as_twin",
        f"{len(said)} + {len(rest.token_ids)} tokens against {len(whole.token_ids)} in one go",
        equal_tokens=said + rest.token_ids == whole.token_ids,
        equal_log_probabilities=rest.logprobs == whole.logprobs[len(said) :],
        equal_state=life.alice.digest() == twin_digest,
    )


def back(life: Life) -> None:
    """Take Alice back to her snapshot and ask what she was asked then."""
    life.screen.act("Alice is taken back to the snapshot and asked what she was asked then.")
    with life.report.timed("rollback"):
        life.alice.rollback(life.snapshot, rng="inherit")
    again = life.alice.answer(story.question(story.WHAT_FOUND), **ASKED)
    life.screen.spoke("alice", story.WHAT_FOUND, again.text)
    then = life.after_snapshot
    life.decide(
        "rollback_exact",
        f"to {life.snapshot}",
        equal_answer=then is not None and again.same(then),
        equal_state=life.alice.digest() == life.digest_after,
    )


def carry(life: Life) -> None:
    """Carry the snapshot to a file and back, whole and damaged."""
    life.screen.act("The snapshot goes to a file and comes back under another name.")
    with life.report.timed("export"):
        file = _export(life.client, life.snapshot)
    version = life.client.get(path("versions", life.snapshot))
    with life.report.timed("import"):
        arrived = _import(life.client, file, "traveller")
    traveller = Person(life.client, arrived["actor"])
    said = traveller.answer(story.question(story.WHAT_FOUND), **ASKED)
    life.screen.spoke("traveller", story.WHAT_FOUND, said.text)
    life.decide(
        "export_import_equal",
        f"{len(file):,} bytes, {version['digest'][:19]}",
        file_hashes_to_the_digest=_hashed(file, version["digest"]) == version["digest"],
        digest_kept=arrived["digest"] == version["digest"],
        same_bytes_again=_export(life.client, arrived["handle"]) == file,
        equal_answer=life.after_snapshot is not None and said.same(life.after_snapshot),
    )
    places = (len(file) // 2, len(file) - 1)
    refused = [_refusal(life.client, _flipped(file, place)) for place in places]
    names = [actor["name"] for actor in life.client.pages(path("actors"))]
    life.decide(
        "damage_refused",
        f"bit 0 of byte {places[0]:,} and of byte {places[1]:,}: {', '.join(refused)}",
        refused_as_corrupt=set(refused) == {ImageCorrupt.code},
        nothing_made="damaged" not in names,
    )


def family(life: Life) -> None:
    """Ask the lineage who came from whom, and draw it."""
    life.screen.act("The family tree.")
    one, other = life.children[:2]
    up = life.client.get(
        path("actors", one.name, "lineage"), {"direction": "ancestors", "format": "json"}
    )
    nodes = {node["handle"]: node for node in up["nodes"]}
    line = _first_line(nodes, one.info()["head"])
    ops = [nodes[handle]["op"] for handle in line]
    common = life.client.get(
        "/v1/lineage/common-ancestor", {"a": one.info()["head"], "b": other.info()["head"]}
    )
    edges = {(edge["from"], edge["to"]) for edge in up["edges"]}
    life.decide(
        "lineage_path",
        " < ".join(line[:4]) + f" … {line[-1]}",
        through_the_snapshot=life.snapshot in line,
        a_fork_on_the_way="fork" in ops,
        down_to_the_creation=ops[-1] == "create" and line[-1].startswith("alice@"),
        every_step_an_edge=all((parent, child) in edges for child, parent in pairwise(line)),
        siblings_meet_at_the_snapshot=common is not None and common["handle"] == life.snapshot,
    )
    alive = {actor["name"] for actor in life.client.pages(path("actors"))}
    life.screen.drew(tree(memorable(whole_family(life.client, life.alice.name), alive)))


def _first_line(nodes: dict[str, Any], handle: str) -> Sequence[str]:
    """From a version along first parents to its root."""
    line = [handle]
    while nodes[line[-1]]["parents"]:
        line.append(nodes[line[-1]]["parents"][0])
    return line


def memorable(graph: dict[str, Any], alive: set[str]) -> dict[str, Any]:
    """The graph without those who left, and without versions made only to learn a digest."""
    nodes = {node["handle"]: node for node in graph["nodes"]}

    def real(handle: str) -> str:
        while handle in nodes and nodes[handle]["labels"] == PROBE:
            handle = nodes[handle]["parents"][0]
        return handle

    kept = [
        {**node, "parents": [real(parent) for parent in node["parents"]]}
        for node in graph["nodes"]
        if node["labels"] != PROBE and node["actor"] in alive
    ]
    return {**graph, "nodes": kept}


def _hashed(file: bytes, digest: str) -> str:
    """The hash of a file, by the algorithm that a digest names."""
    if digest.startswith("blake3:"):
        return f"blake3:{blake3(file).hexdigest()}"
    return f"blake2b:{hashlib.blake2b(file, digest_size=32).hexdigest()}"


def _export(client: Client, version: str) -> bytes:
    with client.download(path("versions", version, "export")) as (_, chunks):
        return b"".join(chunks)


def _import(client: Client, file: bytes, name: str) -> dict[str, Any]:
    made: dict[str, Any] = client.upload(
        path("versions", "import"), BytesIO(file), len(file), {"name": name}
    )
    return made


def _flipped(file: bytes, place: int) -> bytes:
    """The file with one bit changed."""
    damaged = bytearray(file)
    damaged[place] ^= 1
    return bytes(damaged)


def _refusal(client: Client, file: bytes) -> str:
    """The code under which a file is refused, or that it was not."""
    try:
        _import(client, file, "damaged")
    except StatevisorError as error:
        return error.code
    return "accepted"
