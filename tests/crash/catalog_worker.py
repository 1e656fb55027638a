"""Lives that end in the middle: a process that forks one doomed catalog per line of its input.

A line is JSON: folder, the statement at which the life ends, whether before or after it, and a
fault to be built in. Whatever a life was told is done, it writes to `acks` in its folder at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import zlib
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from statevisor.hypervisor.catalog_port import Guard, JournalEntry, NewActor, Origin
from statevisor.hypervisor.ids import actor_id, own_name
from statevisor.hypervisor.records import ActorRecord, TurnRecord
from statevisor.hypervisor.vocab import FinishReason
from statevisor.store import db, prepared, writer
from statevisor.store.catalog import SqlCatalog


def token(segment: int, position: int) -> int:
    """The token that belongs at a place: anything else found there is wrong."""
    return zlib.crc32(f"{segment}:{position}".encode()) & 0x7FFFFFFF


class Doom:
    """Counts statements and ends the process at one of them."""

    def __init__(self, at: int, after: bool) -> None:
        self.left = at
        self.after = after
        self.real = prepared.execute
        for module in (prepared, db, writer):
            module.execute = self.execute  # type: ignore[attr-defined]

    def execute(self, conn: Connection, sql: str, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = self.real(conn, sql, *args, **kwargs)
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def open_gate_early() -> None:
    """The fault: callers hear of their operations before the commit."""
    commit, finish = writer.Writer._commit, writer.finish
    running: list[Any] = []

    async def let_callers_act() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    def tell_then_finish(conn: Connection, *, commit: bool) -> None:
        if commit and running:
            loop, group = running.pop()
            for job in group:
                loop.call_soon_threadsafe(writer._resolve, job)
            asyncio.run_coroutine_threadsafe(let_callers_act(), loop).result()
        finish(conn, commit=commit)

    def remember_group(self: Any, group: list[Any]) -> Any:
        running.append((group[0].future.get_loop(), group))
        return commit(self, group)

    writer.Writer._commit = remember_group  # type: ignore[method-assign]
    writer.finish = tell_then_finish


class Life:
    """Two actors that talk, fork and roll back until the process ends."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.number = number
        self.acks = os.open(folder / "acks", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.made = 0

    def ack(self, **done: Any) -> None:
        os.write(self.acks, (json.dumps(done) + "\n").encode())

    def new(self) -> NewActor:
        self.made += 1
        key = actor_id(self.number * 10_000 + self.made, self.number)
        return NewActor(id=key, name=own_name(key), model="m", seed=1, labels={"a": "b"})

    async def run(self) -> None:
        self.catalog = await SqlCatalog.open(self.folder)
        self.incarnation = await self.catalog.claim("life")
        for turn in await self.catalog.open_turns():
            await self.end(turn, turn.position, FinishReason.CANCELLED)
        await asyncio.gather(self.actor(0), self.actor(1))
        await self.catalog.close()

    async def actor(self, which: int) -> None:
        # The first segment of an actor is unknown before it is made: it begins without a prompt.
        actor = await self.catalog.create(self.new(), ())
        self.ack(op="actor", id=actor.id)
        for step in range(3):
            actor = await self.turn(actor, prompt=2 + which, groups=3 + step)
            origin = Origin(segment=actor.segment, position=actor.position - 2, handle=None)
            if (step + which) % 2:
                actor, version = await self.catalog.rollback(
                    actor.id, origin, seed=None, guard=Guard(epoch=actor.epoch)
                )
                self.ack(op="version", handle=f"{actor.id}@{version.seq}")
            else:
                children = await self.catalog.fork([self.new(), self.new()], origin)
                for child in children:
                    self.ack(op="actor", id=child.id)
                actor = children[0]

    async def turn(self, actor: ActorRecord, *, prompt: int, groups: int) -> ActorRecord:
        self.made += 1
        start = actor.position
        turn = TurnRecord(
            id=f"turn_{self.number:04}-{self.made:04}",
            actor_id=actor.id,
            segment=actor.segment,
            start=start,
            prompt_tokens=prompt,
            settings={},
            position=start + prompt,
            created_at=0,
        )
        tokens = [token(actor.segment, start + n) for n in range(prompt)]
        await self.catalog.begin_turn(turn, tokens, guard=Guard(epoch=actor.epoch))
        self.ack(op="turn", id=turn.id)
        self.ack(op="tokens", segment=actor.segment, end=start + prompt)
        position = start + prompt
        for group in range(groups):
            count = 1 + group % 2
            entry = JournalEntry(
                turn_id=turn.id,
                segment=actor.segment,
                position=position,
                tokens=tuple(token(actor.segment, position + n) for n in range(count)),
            )
            await self.catalog.journal([entry], incarnation=self.incarnation)
            position += count
            self.ack(op="tokens", segment=actor.segment, end=position)
        return await self.end(turn, position, FinishReason.LENGTH)

    async def end(self, turn: TurnRecord, position: int, finish: FinishReason) -> ActorRecord:
        actor = await self.catalog.end_turn(
            turn.id, finish=finish, position=position, text="", result=None, guard=Guard()
        )
        self.ack(op="ended", id=turn.id, position=position)
        self.ack(op="version", handle=f"{actor.id}@{actor.head}")
        return actor


def live(order: dict[str, Any]) -> None:
    if order["fault"] == "early gate":
        open_gate_early()
    Doom(order["at"], order["after"])
    asyncio.run(Life(Path(order["folder"]), order["number"]).run())


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            live(json.loads(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
