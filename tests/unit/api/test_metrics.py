import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from statevisor import hypervisor, store
from statevisor.api.metrics import GAUGES, METERED, PrometheusMeter

PAGE = """requests_running, requests_waiting, prompt_tokens_total, generation_tokens_total,
request_success_total{finish_reason}, time_to_first_token_seconds, inter_token_latency_seconds,
e2e_request_latency_seconds, step_seconds, step_rows, actors{status}, slots{state},
tier_bytes{tier}, tier_moves_total{from,to}, tier_move_seconds{from,to},
snapshot_seconds, fork_seconds, mutate_seconds, hibernate_seconds, resume_seconds,
journal_commit_seconds, journal_group_rows, replayed_tokens_total, image_checksum_failures_total,
fenced_writes_total, mailbox_depth"""
NOW = {
    "requests_running": 1,
    "requests_waiting": 2,
    "mailbox_depth": 2,
    "slots_free": 3,
    "slots_used": 5,
    "actors_idle": 1,
    "actors_hibernated": 4,
    "tier_bytes_gpu": 10,
    "tier_bytes_nvme": 20,
}


def declared():
    """The names and labels of the page."""
    for entry in re.split(r",\s*(?![^{]*\})", PAGE):
        name, _, labels = entry.strip().partition("{")
        yield name, tuple(filter(None, labels.rstrip("}").split(",")))


def exercised():
    meter = PrometheusMeter()
    for name, metric in METERED.items():
        labels = dict.fromkeys(metric.labels, "x")
        if metric.kind == "counter":
            meter.count(name, 2, **labels)
        else:
            meter.observe(name, 0.2, **labels)
    return {f.name: f for f in text_string_to_metric_families(meter.page(NOW).decode())}


@pytest.mark.parametrize(("name", "labels"), list(declared()))
def test_every_metric_of_the_page_is_there(name, labels):
    family = exercised()[f"statevisor_{name.removesuffix('_total')}"]
    found = {label for sample in family.samples for label in sample.labels} - {"le"}
    assert found == set(labels)


def test_names_are_clean():
    """The rules of promtool's linter that apply here."""
    for family in exercised().values():
        assert family.documentation
        assert re.fullmatch(r"(statevisor|process)_[a-z0-9_]+", family.name)
        assert not family.name.endswith(("_created", "_total", "_count", "_sum", "_bucket"))
        if family.type == "counter":
            assert all(s.name.endswith("_total") for s in family.samples)
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb)$", family.name)


def test_values_arrive():
    families = exercised()
    (tokens,) = families["statevisor_generation_tokens"].samples
    assert tokens.value == 2
    slots = {s.labels["state"]: s.value for s in families["statevisor_slots"].samples}
    assert slots == {"free": 3, "used": 5}
    steps = {s.name: s.value for s in families["statevisor_step_seconds"].samples}
    assert steps["statevisor_step_seconds_sum"] == 0.2


def test_an_undeclared_name_shows_at_once():
    meter = PrometheusMeter()
    with pytest.raises(KeyError):
        meter.count("typo_total")
    with pytest.raises(KeyError):
        meter.observe("prompt_tokens_total", 1.0)
    with pytest.raises(ValueError, match="label names"):
        meter.count("request_success_total", 1, actor="alice")


def test_whatever_the_core_measures_is_declared():
    used = set()
    for part in (hypervisor, store):
        for source in Path(part.__path__[0]).glob("*.py"):
            text = source.read_text()
            used |= set(re.findall(r"meter\.(?:observe|count)\(\s*\"([a-z0-9_]+)", text))
    assert "step_seconds" in used
    assert used <= set(METERED)


def test_two_meters_do_not_share():
    one, two = PrometheusMeter(), PrometheusMeter()
    one.count("prompt_tokens_total")
    assert b"statevisor_prompt_tokens_total 0.0" in two.page({})


def test_no_label_can_name_an_actor():
    labels = {label for metric in METERED.values() for label in metric.labels}
    assert labels == {"finish_reason", "from", "to", "method", "route", "status"}
    assert GAUGES


async def test_requests_are_counted_by_route(client):
    await client.get("/v1/actors/alice")
    await client.get("/v1/actors/bob")
    await client.get("/nowhere/alice")
    response = await client.get("/metrics")
    text = await response.text()
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    line = 'statevisor_http_requests_total{method="GET",route="/v1/actors/{a}",status="200"} 2.0'
    assert line in text
    assert 'route="none",status="404"' in text
    assert "alice" not in text
    assert 'statevisor_tier_bytes{tier="gpu"} 200.0' in text
    assert "statevisor_requests_running 1.0" in text
