"""Work done once, by whoever comes first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from statevisor.store.shared import Shared


def test_who_needs_it_does_it_where_nobody_has():
    done = []
    work = Shared(lambda: done.append(1) or len(done))
    assert not work.done
    assert [work(), work()] == [1, 1]
    assert work.done


def test_who_comes_while_it_is_done_waits_for_the_result():
    begun, gate, calls = Event(), Event(), []

    def slow():
        calls.append(1)
        begun.set()
        assert gate.wait(20), "the test forgot its gate"
        return 7

    work = Shared(slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(work)
        assert begun.wait(20)
        second = pool.submit(work)
        assert not work.done
        gate.set()
        assert first.result() == second.result() == 7
    assert len(calls) == 1


def test_everybody_is_told_what_went_wrong():
    def broken():
        raise ValueError("no")

    work = Shared(broken)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            work()
    assert not work.done
