from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from statevisor.hypervisor.catalog_port import Guard, JournalEntry, NewActor
from statevisor.hypervisor.errors import StatevisorError
from statevisor.hypervisor.records import ActorRecord, TurnRecord
from statevisor.hypervisor.vocab import FinishReason
from statevisor.store import journal
from statevisor.store.catalog import SqlCatalog


@dataclass
class Folder:
    """A catalog that can be left open in the file and opened again."""

    path: Path
    catalog: SqlCatalog
    incarnation: int = 0

    async def again(self) -> None:
        """Open it anew, as after a crash: nothing of what was in memory is left."""
        await self.catalog.close()
        self.catalog = await SqlCatalog.open(self.path)

    def rows(self) -> list[int]:
        db = sqlite3.connect(self.path / "catalog.db")
        try:
            return [row[0] for row in db.execute("SELECT id FROM journal ORDER BY id")]
        finally:
            db.close()

    def change(self, sql: str, *values: object) -> None:
        db = sqlite3.connect(self.path / "catalog.db", isolation_level=None)
        assert db.execute(sql, values).rowcount == 1
        db.close()

    async def begin(self, name: str, prompt: tuple[int, ...] = (1,)) -> TurnRecord:
        new = NewActor(id=f"act_{name}", name=name, model="m", seed=1, labels={})
        actor = await self.catalog.create(new, prompt)
        return await self.turn(actor, f"turn_{name}")

    async def turn(self, actor: ActorRecord, turn_id: str) -> TurnRecord:
        turn = TurnRecord(
            id=turn_id,
            actor_id=actor.id,
            segment=actor.segment,
            start=actor.position,
            prompt_tokens=0,
            settings={},
            position=actor.position,
            created_at=0,
        )
        await self.catalog.begin_turn(turn, (), guard=Guard())
        return turn

    async def say(self, turn: TurnRecord, *tokens: int) -> None:
        at = (await self.catalog.turn(turn.id)).position
        entry = JournalEntry(turn_id=turn.id, segment=turn.segment, position=at, tokens=tokens)
        await self.catalog.journal([entry], incarnation=self.incarnation)

    async def end(self, turn: TurnRecord, cut: int = 0) -> ActorRecord:
        at = (await self.catalog.turn(turn.id)).position
        return await self.catalog.end_turn(
            turn.id,
            finish=FinishReason.STOP,
            position=at - cut,
            text="",
            result=None,
            guard=Guard(),
        )

    async def tokens(self, turn: TurnRecord) -> list[int]:
        runs = await self.catalog.transcript(turn.segment, turn.start, 10**9)
        return [token for run in runs for token in run.tokens]


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Folder]:
    made = Folder(tmp_path, await SqlCatalog.open(tmp_path))
    yield made
    await made.catalog.close()


async def test_open_turns_are_read_again(folder):
    one, two = await folder.begin("one"), await folder.begin("two", (1, 2))
    await folder.say(one, 10, 11)
    await folder.say(two, 20)
    await folder.say(one, 12)
    await folder.again()

    assert await folder.tokens(one) == [10, 11, 12]
    assert await folder.tokens(two) == [20]
    assert [turn.position for turn in await folder.catalog.open_turns()] == [4, 3]
    assert (await folder.catalog.actor("one")).position == 4
    await folder.say(one, 13)
    await folder.again()
    ended = await folder.end(one)
    assert ended.position == 5
    assert await folder.tokens(one) == [10, 11, 12, 13]


async def test_rows_go_when_no_open_turn_needs_them(folder):
    one, two = await folder.begin("one"), await folder.begin("two")
    for token in range(5):
        await folder.say(one, token)
        await folder.say(two, token)
    assert len(folder.rows()) == 10
    await folder.end(one)
    assert len(folder.rows()) == 10
    await folder.end(two)
    assert folder.rows() == []


async def test_long_turns_are_folded_and_let_rows_go(folder, monkeypatch):
    monkeypatch.setattr(journal, "FOLD_TOKENS", 10)
    monkeypatch.setattr(journal, "SWEEP_GROUPS", 4)
    turn = await folder.begin("one")
    for token in range(25):
        await folder.say(turn, token)

    assert len(folder.rows()) < 25
    assert await folder.tokens(turn) == list(range(25))
    await folder.again()
    assert await folder.tokens(turn) == list(range(25))
    await folder.say(turn, 99)
    assert (await folder.end(turn)).position == 27
    assert await folder.tokens(turn) == [*range(25), 99]


async def test_a_slow_turn_does_not_keep_the_rows_of_others(folder, monkeypatch):
    monkeypatch.setattr(journal, "FOLD_GROUPS", 8)
    monkeypatch.setattr(journal, "SWEEP_GROUPS", 4)
    slow, fast = await folder.begin("slow"), await folder.begin("fast")
    await folder.say(slow, 7)
    for token in range(40):
        await folder.say(fast, token)

    assert len(folder.rows()) <= 8 + 4
    await folder.again()
    assert await folder.tokens(slow) == [7]
    assert await folder.tokens(fast) == list(range(40))


@pytest.mark.parametrize("cut", [0, 1, 5, 12, 24, 25])
async def test_a_turn_cut_below_what_was_folded(folder, monkeypatch, cut):
    monkeypatch.setattr(journal, "FOLD_TOKENS", 10)
    turn = await folder.begin("one")
    for token in range(25):
        await folder.say(turn, token)
    ended = await folder.end(turn, cut=cut)

    assert ended.position == 26 - cut
    assert await folder.tokens(turn) == list(range(25 - cut))


async def test_dropped_tokens_do_not_come_back_in_the_next_turn(folder):
    """Rows of an ended turn may outlive it: they must not be taken for the next one's."""
    other = await folder.begin("other")
    await folder.say(other, 1)
    turn = await folder.begin("one")
    await folder.say(turn, 10, 11, 12, 13)
    ended = await folder.end(turn, cut=3)
    assert folder.rows() != []
    after = await folder.turn(ended, "turn_after")
    await folder.again()

    assert await folder.tokens(turn) == [10]
    assert (await folder.catalog.turn(after.id)).position == 2
    await folder.say(after, 20)
    await folder.again()
    assert await folder.tokens(turn) == [10, 20]


async def test_ids_of_rows_are_never_used_again_while_a_turn_is_open(folder):
    turn = await folder.begin("one")
    await folder.say(turn, 1)
    ended = await folder.end(turn)
    assert folder.rows() == []
    after = await folder.turn(ended, "turn_after")
    await folder.again()
    await folder.say(after, 2)
    await folder.again()
    assert await folder.tokens(after) == [2]


async def test_a_damaged_row_is_named_and_nothing_is_opened(folder):
    turn = await folder.begin("one")
    await folder.say(turn, 1)
    await folder.say(turn, 2)
    row = folder.rows()[1]
    await folder.catalog.close()
    folder.change(
        "UPDATE journal SET data = CAST(substr(data, 1, 14) || x'FF' || substr(data, 16) AS BLOB)"
        " WHERE id = ?",
        row,
    )
    with pytest.raises(StatevisorError, match=f"journal row {row} is damaged"):
        await SqlCatalog.open(folder.path)
    folder.change("DELETE FROM journal WHERE id = ?", row)
    folder.catalog = await SqlCatalog.open(folder.path)
    assert await folder.tokens(turn) == [1]


async def test_a_lost_row_is_a_gap_and_nothing_is_opened(folder):
    turn = await folder.begin("one")
    for token in range(3):
        await folder.say(turn, token)
    row = folder.rows()[1]
    await folder.catalog.close()
    folder.change("DELETE FROM journal WHERE id = ?", row)
    with pytest.raises(StatevisorError, match=f"journal row {row + 1} goes on at 3"):
        await SqlCatalog.open(folder.path)
    folder.change("DELETE FROM journal WHERE id = ?", row + 1)
    folder.catalog = await SqlCatalog.open(folder.path)


async def test_a_failed_group_leaves_no_row(folder):
    turn = await folder.begin("one")
    await folder.say(turn, 1)
    before = folder.rows()
    good = JournalEntry(turn_id=turn.id, segment=turn.segment, position=2, tokens=(2,))
    with pytest.raises(StatevisorError):
        await folder.catalog.journal([good, good._replace(position=9)], incarnation=0)
    assert folder.rows() == before
    await folder.say(turn, 3)
    await folder.again()
    assert await folder.tokens(turn) == [1, 3]
