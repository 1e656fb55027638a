"""It shows what the library's own histogram shows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from statevisor.api.histogram import PlainHistogram

BOUNDS = (1e-4, 0.25, 1.0, 2.5, 300.0)


@given(st.lists(st.sampled_from(BOUNDS) | st.floats(0, 1e4)))
def test_its_page_is_that_of_the_librarys_own(values: list[float]) -> None:
    pages = []
    for kind in (PlainHistogram, Histogram):
        registry = CollectorRegistry()
        if kind is Histogram:
            made = Histogram("seconds", "How long.", buckets=BOUNDS, registry=registry)
        else:
            made = PlainHistogram("seconds", "How long.", BOUNDS)
            registry.register(made)
        for value in values:
            made.observe(value)
        page = generate_latest(registry).decode().splitlines()
        pages.append([line for line in page if "_created" not in line])
    assert pages[0] == pages[1]
