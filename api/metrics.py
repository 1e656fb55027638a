"""The meter as Prometheus metrics, and what the visor knows at the moment as gauges.

Names are those of the HTTP page with the prefix `statevisor_`; no label names an actor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric

from statevisor.api.histogram import PlainHistogram

PREFIX = "statevisor_"
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_SECONDS = (
    *(1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 120.0, 300.0),
)
_COUNTS = tuple(float(2**n) for n in range(13))


class Declared(NamedTuple):
    """One metric of the page."""

    kind: Literal["counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = _SECONDS


METERED: Mapping[str, Declared] = {
    "prompt_tokens_total": Declared("counter", "Prompt tokens taken in."),
    "generation_tokens_total": Declared("counter", "Tokens generated and committed."),
    "request_success_total": Declared("counter", "Finished turns.", ("finish_reason",)),
    "time_to_first_token_seconds": Declared("histogram", "From request to first token."),
    "inter_token_latency_seconds": Declared("histogram", "Between two tokens of one turn."),
    "e2e_request_latency_seconds": Declared("histogram", "From request to the end of its turn."),
    "step_seconds": Declared("histogram", "One batched forward pass."),
    "step_rows": Declared("histogram", "Actors in one step.", (), _COUNTS),
    "tier_moves_total": Declared("counter", "States moved between tiers.", ("from", "to")),
    "tier_move_seconds": Declared("histogram", "One move between tiers.", ("from", "to")),
    "idle_moves_failed_total": Declared("counter", "Moves of idle actors that did not succeed."),
    "checkpoints_missed_total": Declared("counter", "Checkpoints that could not be written."),
    "snapshot_seconds": Declared("histogram", "One snapshot."),
    "fork_seconds": Declared("histogram", "One fork, however many children."),
    "mutate_seconds": Declared("histogram", "One mutation."),
    "hibernate_seconds": Declared("histogram", "One hibernation."),
    "resume_seconds": Declared("histogram", "One resume."),
    "journal_commit_seconds": Declared("histogram", "One group commit of generated tokens."),
    "journal_group_rows": Declared("histogram", "Turns in one group commit.", (), _COUNTS),
    "replayed_tokens_total": Declared("counter", "Tokens replayed to reach a state again."),
    "actors_recovered_total": Declared("counter", "Actors rebuilt at start, unasked."),
    "image_checksum_failures_total": Declared("counter", "Images whose bytes were damaged."),
    "fenced_writes_total": Declared("counter", "Writes refused because the owner was stale."),
    "http_requests_total": Declared(
        "counter", "HTTP requests answered.", ("method", "route", "status")
    ),
    "http_request_seconds": Declared(
        "histogram", "From request line to the end of the answer.", ("method", "route")
    ),
}
GAUGES: Mapping[str, str] = {
    "requests_running": "Turns that are stepped now.",
    "requests_waiting": "Turns that wait for their actor or a slot.",
    "actors": "Actors by status.",
    "slots": "Slots by state.",
    "tier_bytes": "Bytes held by each tier.",
    "mailbox_depth": "Operations that wait in mailboxes.",
}
#: Gauges with a label: "actors_idle" is actors{status="idle"}.
_LABELLED: Mapping[str, str] = {"actors": "status", "slots": "state", "tier_bytes": "tier"}


class PrometheusMeter:
    """A Meter; every instance has a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._plain: dict[str, PlainHistogram] = {}  #: those without labels
        for name, metric in METERED.items():
            if metric.kind == "counter":
                self._counters[name] = Counter(
                    PREFIX + name, metric.help, metric.labels, registry=self._registry
                )
            elif not metric.labels:
                plain = PlainHistogram(PREFIX + name, metric.help, metric.buckets)
                self._plain[name] = plain
                self._registry.register(plain)
            else:
                self._histograms[name] = Histogram(
                    PREFIX + name,
                    metric.help,
                    metric.labels,
                    registry=self._registry,
                    buckets=metric.buckets,
                )
        ProcessCollector(registry=self._registry)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put one value into a histogram. Raises: KeyError for a name that is not declared."""
        if labels:
            self._histograms[name].labels(**labels).observe(value)
        else:
            self._plain[name].observe(value)

    def count(self, name: str, n: float = 1, **labels: str) -> None:
        """Add to a counter. Raises: KeyError for a name that is not declared."""
        metric = self._counters[name]
        (metric.labels(**labels) if labels else metric).inc(n)

    def page(self, gauges: Mapping[str, float]) -> bytes:
        """The metrics in the text format, with the gauges of this moment."""
        return generate_latest(_Page(self._registry, gauges))


class _Page:
    """What one scrape shows."""

    def __init__(self, registry: CollectorRegistry, gauges: Mapping[str, float]) -> None:
        self._registry = registry
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            # the text format would show the times of creation as metrics of their own
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric
        families: dict[str, GaugeMetricFamily] = {}
        for key, value in self._gauges.items():
            name, labels = _split(key)
            if name not in families:
                text = GAUGES.get(name, f"{name.replace('_', ' ')}.")
                families[name] = GaugeMetricFamily(PREFIX + name, text, labels=list(labels))
            families[name].add_metric(list(labels.values()), value)
        yield from families.values()


def _split(key: str) -> tuple[str, dict[str, str]]:
    for name, label in _LABELLED.items():
        if key.startswith(f"{name}_"):
            return name, {label: key.removeprefix(f"{name}_")}
    return key, {}
