"""Two catalogs on one file, past the folder's lock: the older one must not write."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from statevisor.hypervisor.catalog_port import Guard, JournalEntry, NewActor, Once
from statevisor.hypervisor.errors import Fenced
from statevisor.hypervisor.records import TurnRecord
from statevisor.hypervisor.vocab import FinishReason
from statevisor.store import actors as actors_module
from statevisor.store import catalog as catalog_module
from statevisor.store.catalog import SqlCatalog

Step = Callable[[SqlCatalog], Awaitable[object]]


def new(name: str) -> NewActor:
    return NewActor(id=f"act_{name}", name=name, model="m", seed=1, labels={})


TURN = TurnRecord(
    id="turn_1",
    actor_id="act_alice",
    segment=1,
    start=1,
    prompt_tokens=0,
    settings={},
    position=1,
    created_at=0,
)


def entry(position: int, token: int) -> JournalEntry:
    return JournalEntry(turn_id="turn_1", segment=1, position=position, tokens=(token,))


WRITES: dict[str, Step] = {
    "create": lambda c: c.create(new("carl"), ()),
    "journal": lambda c: c.journal([entry(2, 66)], incarnation=1),
    "update": lambda c: c.update("act_alice", guard=Guard(), pinned=True),
    "remember": lambda c: c.remember(Once(key="k", request="r"), {}),
    "end": lambda c: c.end_turn(
        "turn_1", finish=FinishReason.STOP, position=2, text="", result=None, guard=Guard()
    ),
}


async def two(folder: Path) -> tuple[SqlCatalog, SqlCatalog]:
    """An old owner in the middle of a turn, and one that has taken the folder from it."""
    old = await SqlCatalog.open(folder, locked=False)
    assert await old.claim("old") == 1
    await old.create(new("alice"), (1,))
    await old.begin_turn(TURN, (), guard=Guard())
    fresh = await SqlCatalog.open(folder, locked=False)
    await old.journal([entry(1, 7)], incarnation=1)  # after the new one was opened
    assert await fresh.claim("new") == 2
    return old, fresh


@pytest.mark.parametrize("write", WRITES)
async def test_an_old_owner_writes_nothing_more(tmp_path, write):
    old, fresh = await two(tmp_path)
    with pytest.raises(Fenced):
        await WRITES[write](old)
    assert await fresh.count_actors() == 1
    assert (await fresh.actor("alice")).position == 2
    assert await fresh.operation("k") is None
    await old.close()
    await fresh.close()


@pytest.mark.parametrize("write", WRITES)
async def test_without_the_check_of_the_incarnation_it_would(tmp_path, write, monkeypatch):
    monkeypatch.setattr(catalog_module, "check_incarnation", lambda *_: None)
    old, fresh = await two(tmp_path)
    await WRITES[write](old)
    await old.close()
    await fresh.close()


async def test_the_new_owner_goes_on_where_the_old_one_was_stopped(tmp_path):
    old, fresh = await two(tmp_path)
    assert (await fresh.open_turns())[0].position == 2
    with pytest.raises(Fenced):
        await old.journal([entry(2, 66)], incarnation=1)
    await fresh.journal([entry(2, 8)], incarnation=2)
    runs = await fresh.transcript(1, 0, 99)
    assert [run.tokens for run in runs] == [(1,), (7, 8)]
    assert (await old.transcript(1, 0, 99))[-1].tokens == (7,)
    await old.close()
    await fresh.close()


async def test_a_stale_epoch_is_refused_and_only_by_the_check(tmp_path, monkeypatch):
    old, fresh = await two(tmp_path)
    stale = Guard(epoch=1)
    with pytest.raises(Fenced):
        await fresh.update("act_alice", guard=stale, pinned=True)
    monkeypatch.setattr(actors_module, "check_guard", lambda *_: None)
    assert (await fresh.update("act_alice", guard=stale, pinned=True)).pinned
    await old.close()
    await fresh.close()
