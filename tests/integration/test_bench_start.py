"""The measurements of start and of long histories run, and tell what they promise to tell."""

from __future__ import annotations

from pathlib import Path

from statevisor.api.bench import history, start


def test_start_on_many_actors(tmp_path: Path) -> None:
    found = start.run(2000, rounds=1, scratch=tmp_path)

    assert (found["bench"], found["few"]["actors"], found["many"]["actors"]) == ("start", 100, 2000)
    for part in (found["few"], found["many"]):
        whole = sum(part[f"{name}_s"] for name in ("open", "claim", "images_listed", "slabs_open"))
        assert 0 < whole < part["ready_s"]
    assert set(found["bytes_per_actor"]) == {"rss_bytes", "peak_bytes"}
    assert not list(tmp_path.iterdir())


async def test_a_long_history(tmp_path: Path) -> None:
    await history._made(tmp_path, 5000, 1)
    found = await history._measured(tmp_path, 5000, 2)

    assert set(found) == {
        *("start_ms", "append_ms", "generate_ms", "generate_penalised_ms", "resume_ms"),
        "rss_bytes",
    }
    assert all(value["p50"] > 0 for name, value in found.items() if name != "rss_bytes")
