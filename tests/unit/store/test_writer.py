from __future__ import annotations

import asyncio
import resource
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection

from statevisor.hypervisor.errors import ActorExists, Fenced, StatevisorError, Unavailable
from statevisor.store import writer as writer_module
from statevisor.store.db import open_engine
from statevisor.store.prepared import execute
from statevisor.store.writer import GROUP, Writer


class Notes:
    """A memory that keeps a list, and what was published of it."""

    def __init__(self) -> None:
        self.items: list[object] = []
        self.published: list[object] = []

    def mark(self) -> int:
        return len(self.items) - len(self.published)

    def undo(self, mark: int) -> None:
        del self.items[len(self.published) + mark :]

    def publish(self) -> None:
        self.published = list(self.items)


class Bench:
    """A writer on a table of numbers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes = Notes()
        self.scope_error: Exception | None = None
        self.engine = open_engine(path, connections=1)
        self.writer: Writer[Connection] = Writer(self.engine, self._scope, self.notes)

    def _scope(self, conn: Connection) -> Connection:
        if self.scope_error is not None:
            raise self.scope_error
        return conn

    def put(self, number: int) -> Callable[[Connection], int]:
        """An operation that stores a number, on disk and in memory."""

        def op(conn: Connection) -> int:
            self.notes.items.append(number)
            execute(conn, "INSERT INTO t VALUES (?)", (number,))
            return number

        return op

    def put_then_fail(self, number: int, error: Exception) -> Callable[[Connection], int]:
        def op(conn: Connection) -> int:
            self.put(number)(conn)
            raise error

        return op

    async def hold(self) -> Callable[[], None]:
        """Keep the writer's thread busy; returns what lets it go on."""
        entered, gate = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def op(_: Connection) -> None:
            loop.call_soon_threadsafe(entered.set)
            assert gate.wait(10)

        self.holding = asyncio.create_task(self.writer.submit(op))
        await entered.wait()
        return gate.set

    def stored(self) -> list[int]:
        db = sqlite3.connect(self.path)
        try:
            return [row[0] for row in db.execute("SELECT n FROM t ORDER BY rowid")]
        finally:
            db.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path / "numbers.db")
    await made.writer.start()
    await made.writer.submit(lambda conn: execute(conn, "CREATE TABLE t(n INTEGER UNIQUE)"))
    yield made
    await made.writer.close()
    made.engine.dispose()


async def test_what_gathers_during_a_commit_is_the_next_group(bench):
    go_on = await bench.hold()
    before = bench.writer.groups
    tasks = [asyncio.create_task(bench.writer.submit(bench.put(n))) for n in range(10)]
    await asyncio.sleep(0)
    go_on()

    assert await asyncio.gather(*tasks) == list(range(10))
    assert bench.writer.groups == before + 2
    assert bench.stored() == list(range(10))
    assert bench.notes.published == list(range(10))


async def test_a_group_is_bounded(bench):
    go_on = await bench.hold()
    before = bench.writer.groups
    tasks = [asyncio.create_task(bench.writer.submit(bench.put(n))) for n in range(GROUP + 1)]
    await asyncio.sleep(0)
    go_on()
    await asyncio.gather(*tasks)

    assert bench.writer.groups == before + 3


@pytest.mark.parametrize(
    "error", [ActorExists("taken"), ValueError("a bug"), KeyError("another")], ids=repr
)
async def test_a_failing_operation_leaves_nothing_and_disturbs_no_other(bench, error):
    go_on = await bench.hold()
    calls = [bench.put(1), bench.put_then_fail(2, error), bench.put(3)]
    tasks = [asyncio.create_task(bench.writer.submit(call)) for call in calls]
    await asyncio.sleep(0)
    go_on()

    assert await asyncio.gather(*tasks, return_exceptions=True) == [1, error, 3]
    assert bench.stored() == [1, 3]
    assert bench.notes.published == [1, 3]


async def test_a_refused_statement_is_an_error_of_ours(bench):
    await bench.writer.submit(bench.put(1))
    with pytest.raises(StatevisorError, match="UNIQUE") as caught:
        await bench.writer.submit(bench.put(1))

    assert not isinstance(caught.value, Unavailable)
    await bench.writer.submit(bench.put(2))
    assert bench.stored() == [1, 2]


async def test_the_gate_opens_after_the_commit_and_in_order(bench, monkeypatch):
    committing, may_commit = threading.Event(), threading.Event()
    finish = writer_module.finish

    def slow(conn: Connection, *, commit: bool) -> None:
        committing.set()
        assert may_commit.wait(10)
        finish(conn, commit=commit)

    go_on = await bench.hold()
    monkeypatch.setattr(writer_module, "finish", slow)
    order: list[int] = []
    tasks = [asyncio.create_task(bench.writer.submit(bench.put(n))) for n in range(3)]
    for n, task in enumerate(tasks):
        task.add_done_callback(lambda _, n=n: order.append(n))
    await asyncio.sleep(0)
    go_on()
    await asyncio.to_thread(committing.wait, 10)
    # The held operation is in its own group: let that one through, then look at the next.
    committing.clear()
    may_commit.set()
    await bench.holding
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2]

    may_commit.clear()
    committing.clear()
    last = asyncio.create_task(bench.writer.submit(bench.put(9)))
    await asyncio.to_thread(committing.wait, 10)
    assert not last.done()
    assert 9 not in bench.notes.published
    may_commit.set()
    assert await last == 9


async def test_a_scope_that_refuses_fails_its_group_only(bench):
    bench.scope_error = Fenced("not yours")
    with pytest.raises(Fenced):
        await bench.writer.submit(bench.put(1))
    bench.scope_error = None

    assert await bench.writer.submit(bench.put(2)) == 2
    assert bench.stored() == [2]


async def test_a_commit_that_fails_fails_its_group_and_stops_the_writer(bench, caplog):
    """The disk takes no more bytes: a limit of this process makes the write itself fail."""
    await bench.writer.submit(bench.put(1))
    go_on = await bench.hold()
    tasks = [asyncio.create_task(bench.writer.submit(bench.put(n))) for n in range(2, 5)]
    await asyncio.sleep(0)
    go_on()
    await bench.holding
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    await asyncio.gather(*tasks)
    wal = bench.path.with_name("numbers.db-wal").stat().st_size
    tasks = [asyncio.create_task(bench.writer.submit(bench.put(n))) for n in range(5, 8)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (wal, hard))
    try:
        results = await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert all(isinstance(result, Unavailable) for result in results)
    assert "cannot be used" in str(results[0])
    assert bench.writer.stopped is results[0]
    assert "takes no more writes" in caplog.text
    assert bench.notes.items == bench.notes.published == [1, 2, 3, 4]
    with pytest.raises(Unavailable):
        await bench.writer.submit(bench.put(9))
    assert bench.stored() == [1, 2, 3, 4]


async def test_what_waits_behind_a_failing_commit_fails_with_it(bench, monkeypatch):
    def broken(conn: Connection, *, commit: bool) -> None:
        if commit:
            execute(conn, "SELECT * FROM nothing_like_that")

    go_on = await bench.hold()
    monkeypatch.setattr(writer_module, "finish", broken)
    tasks = [asyncio.create_task(bench.writer.submit(bench.put(n))) for n in range(3)]
    await asyncio.sleep(0)
    go_on()
    results = await asyncio.gather(bench.holding, *tasks, return_exceptions=True)

    assert all(isinstance(result, Unavailable) for result in results)
    assert bench.notes.items == []


async def test_a_lock_held_by_another_process_fails_the_group_and_no_more(bench):
    await bench.writer.submit(lambda conn: execute(conn, "PRAGMA busy_timeout=1"))
    other = sqlite3.connect(bench.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"):
        await bench.writer.submit(bench.put(1))
    other.execute("ROLLBACK")
    other.close()

    assert await bench.writer.submit(bench.put(2)) == 2
    assert bench.writer.stopped is None


async def test_a_call_cancelled_while_it_waits_does_nothing(bench):
    go_on = await bench.hold()
    tasks = [asyncio.create_task(bench.writer.submit(bench.put(n))) for n in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    go_on()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert bench.stored() == [0, 2]


async def test_close_finishes_what_was_asked_for(tmp_path):
    bench = Bench(tmp_path / "numbers.db")
    await bench.writer.start()
    await bench.writer.submit(lambda conn: execute(conn, "CREATE TABLE t(n INTEGER UNIQUE)"))
    tasks = [asyncio.create_task(bench.writer.submit(bench.put(n))) for n in range(3)]
    await asyncio.sleep(0)
    await bench.writer.close()

    assert await asyncio.gather(*tasks) == [0, 1, 2]
    with pytest.raises(Unavailable):
        await bench.writer.submit(bench.put(4))
    bench.engine.dispose()
    assert bench.stored() == [0, 1, 2]


async def test_a_fault_of_the_writer_itself_leaves_nobody_waiting(tmp_path):
    bench = Bench(tmp_path / "numbers.db")
    await bench.writer.start()
    await bench.writer.submit(lambda conn: execute(conn, "CREATE TABLE t(n INTEGER UNIQUE)"))
    bench.notes.publish = None  # type: ignore[assignment, method-assign]
    go_on = await bench.hold()
    waiting = asyncio.create_task(bench.writer.submit(bench.put(1)))
    await asyncio.sleep(0)
    go_on()
    results = await asyncio.gather(bench.holding, waiting, return_exceptions=True)

    assert all(isinstance(result, StatevisorError) for result in results)
    with pytest.raises(StatevisorError, match="writer ended"):
        await bench.writer.submit(bench.put(2))
    with pytest.raises(TypeError):
        await bench.writer.close()
    bench.engine.dispose()


@pytest.mark.parametrize("beside", [0, 1])
async def test_one_that_fails_alone_leaves_as_little_as_one_among_others(bench, beside):
    go_on = await bench.hold()
    calls = [bench.put_then_fail(1, ValueError("a bug")), *[bench.put(2)] * beside]
    tasks = [asyncio.create_task(bench.writer.submit(call)) for call in calls]
    await asyncio.sleep(0)
    go_on()
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(results[0], ValueError)
    assert bench.stored() == bench.notes.published == [2] * beside
    assert await bench.writer.submit(bench.put(3)) == 3
    assert bench.stored() == [2] * beside + [3]


async def test_what_is_submitted_together_shares_a_commit(bench):
    before = bench.writer.groups
    await asyncio.gather(*(bench.writer.submit(bench.put(n)) for n in range(GROUP)))

    assert bench.writer.groups == before + 1
