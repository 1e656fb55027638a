"""Verdicts: a promise is kept only if it was decided and every fact held."""

from __future__ import annotations

from statevisor.api.demo.report import CHECKS, Report


def whole() -> Report:
    report = Report()
    for name in CHECKS:
        report.decide(name, {"equal": True}, "compared")
    return report


def test_all_kept_is_ok() -> None:
    report = whole()

    assert report.ok
    assert set(report.as_json()["checks"]) == set(CHECKS)


def test_one_false_fact_breaks_its_promise_and_is_named() -> None:
    report = whole()
    report.decide("fork_isolation", {"equal answer": True, "equal state": False}, "8 forks")

    assert not report.ok
    found = report.as_json()["checks"]["fork_isolation"]
    assert found == {"ok": False, "detail": "NOT equal state; 8 forks"}


def test_a_promise_without_facts_is_broken() -> None:
    report = whole()
    report.decide("rollback_exact", {}, "nothing was compared")

    assert not report.ok


def test_a_promise_not_reached_is_broken_and_says_why() -> None:
    report = whole()
    del report.checks["lineage_path"]
    report.stopped = "actor_not_found: gone"

    assert not report.ok
    found = report.as_json()
    assert found["ok"] is False
    assert found["checks"]["lineage_path"] == {
        "ok": False,
        "detail": "not reached: actor_not_found: gone",
    }


def test_a_story_that_ended_early_is_not_ok_even_if_all_was_decided() -> None:
    report = whole()
    report.stopped = "internal: at the very end"

    assert not report.ok


def test_times_are_measured() -> None:
    report = Report()
    with report.timed("nothing"):
        pass

    assert 0 <= report.timings_ms["nothing"] < 1000
