"""The terms by which a version is found: its labels, who made it and by which rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from statevisor.hypervisor.catalog_port import VersionQuery
from statevisor.hypervisor.records import VersionRecord


def of_labels(labels: Mapping[str, str]) -> Iterator[str]:
    """A label is found by its key alone, and by key and value."""
    for key, value in labels.items():
        yield f"label:{key}"
        yield f"label:{key}={value}"


def of_maker(agent: str | None, rule: str | None) -> Iterator[str]:
    """What made a version."""
    if agent is not None:
        yield f"agent:{agent}"
    if rule is not None:
        yield f"rule:{rule}"


def asked(query: VersionQuery) -> tuple[str, ...]:
    """The terms that a version must have to be an answer."""
    found = [*of_maker(query.agent, query.rule)]
    if query.label is not None:
        key, value = query.label
        found.append(f"label:{key}" if value is None else f"label:{key}={value}")
    return tuple(found)


def matches(query: VersionQuery, version: VersionRecord) -> bool:
    """Whether a version is an answer, wherever the page begins."""
    terms = {*of_labels(version.labels), *of_maker(version.agent, version.rule)}
    return (
        not version.hidden
        and terms.issuperset(asked(query))
        and (query.tag is None or query.tag in version.tags)
        and (query.op is None or version.op is query.op)
        and (query.since_us is None or version.created_at >= query.since_us)
        and (query.until_us is None or version.created_at < query.until_us)
    )
