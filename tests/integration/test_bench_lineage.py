"""The measurements of lineage and forks run, and measure what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statevisor.api.bench import fork, lineage
from statevisor.store import synthetic
from statevisor.store.catalog import SqlCatalog


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Of a small history; it must survive as JSON."""
    made = lineage.run(1000, 2, scratch=tmp_path_factory.mktemp("lineage"))
    return json.loads(json.dumps(made))


def test_every_question_is_asked_of_both(report: dict) -> None:
    assert set(lineage.QUESTIONS) <= set(report["in_process"])
    assert set(lineage.QUESTIONS) | {"diff", "verify"} == set(report["http"])
    for place in ("in_process", "http"):
        for name, found in report[place].items():
            assert 0 < found["ms"]["p50"] <= found["ms"]["p99"], name
    for name in ("ancestors_50", "descendants_50"):
        assert report["in_process"][name]["versions"]["max"] > 1
        assert report["in_process"][name]["us_per_version"] > 0


def test_streams_have_a_whole_life_and_a_whole_family(report: dict) -> None:
    streams = report["streams"]
    assert streams["json"]["versions"] >= 1000 // 16
    assert streams["family"]["versions"] >= 1000 // 16
    assert all(streams[form]["bytes"] > 300 for form in ("json", "dot", "mermaid", "prov"))


async def test_a_made_up_history_contradicts_itself_nowhere(tmp_path: Path) -> None:
    made = synthetic.build(tmp_path, 3000, seed=5)
    catalog = await SqlCatalog.open(tmp_path)
    try:
        findings = await catalog.check()
    finally:
        await catalog.close()

    named_only = {"version_beyond", "actor_position", "image_beyond", "image_overlap"}
    assert {one.kind for one in findings} <= named_only
    assert made.versions == 3000
    assert sum(made.lives) == 3000
    assert made.merges > 0
    assert made.forks > 50


def test_forks_are_timed_beside_bare_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork, "CATALOGS", (100, 200))
    monkeypatch.setattr(fork, "HISTORIES", (10, 20))
    monkeypatch.setattr(fork, "MANY", 200)
    monkeypatch.setattr(fork, "_WARM", 1)
    report = fork.run(3, image_bytes=1 << 20, scratch=tmp_path)

    json.dumps(report)
    for part, sizes in (("by_catalog_versions", fork.CATALOGS), ("by_history_tokens", (10, 20))):
        for size in sizes:
            found = report[part][str(size)]
            assert found["ms"]["n"] == found["bare_commit_ms"]["n"] == 3
            assert found["ms"]["min"] > 0
    for kind in ("one_call", "one_by_one"):
        assert report["many"][kind]["bytes_of_images"] == 0
    # one row for all of them is less than a page
    assert report["many"]["one_call"]["bytes_of_rows"] <= 3 * 2048
    assert 60 < report["many"]["one_by_one"]["bytes_per_fork"] < 160
