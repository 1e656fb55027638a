"""The uninterrupted twin: one guest, one slot, one token after the other."""

from __future__ import annotations

import json
from typing import Any

from statevisor.hypervisor.plan import Row, StepPlan
from statevisor.hypervisor.ports import Mutation
from statevisor.hypervisor.sampling import Draw, SamplerSettings

from stories import Change, Goal, Story, Token  # isort: skip  # beside this file

SLOT = 1


class Oracle:
    """Tells a story again; remembers states, by the story that led to them."""

    def __init__(self, guest: Any, every: int = 1) -> None:
        self._guest = guest
        self._every = every
        self._known: dict[int, bytes] = {}
        self.wrong: list[str] = []  #: tokens that the twin would not have drawn

    def row(self, story: Story) -> bytes:
        """The state behind a story, all but its last token absorbed."""
        self._tell(story)
        return self._save()

    def goes_on(self, story: Story, goal: Goal, count: int) -> list[int]:
        """The tokens that follow."""
        tokens: list[int] = []
        for _ in range(count):
            self._tell(story)
            token = self._step(story, goal)
            assert token is not None
            tokens.append(token)
            story += (Token(token, goal),)
        return tokens

    def _tell(self, story: Story) -> None:
        """Bring the slot to the end of a story; generated tokens are drawn again and compared."""
        keys = [0]
        for mark in story:
            keys.append(hash((keys[-1], mark)))
        at = next((n for n in range(len(story), 0, -1) if keys[n] in self._known), 0)
        if at:
            self._guest.load(SLOT, memoryview(self._known[keys[at]]))
        else:
            self._guest.clear(SLOT)
        for n in range(at, len(story)):
            mark = story[n]
            if isinstance(mark, Change):
                self._change(mark)
            else:
                drawn = self._step(story[:n], mark.goal)
                if mark.goal is not None and drawn != mark.id:
                    self.wrong.append(f"token {n} is {mark.id}, the twin draws {drawn}")
            if (n + 1) % self._every == 0 or n + 1 == len(story):
                self._known[keys[n + 1]] = self._save()

    def _step(self, story: Story, goal: Goal | None) -> int | None:
        """Absorb the last token of a story; draw the next, if there is a goal."""
        last = next((mark for mark in reversed(story) if isinstance(mark, Token)), None)
        if last is None:
            return None
        draw = None
        if goal is not None:
            position = sum(isinstance(mark, Token) for mark in story)
            settings = SamplerSettings(temperature=goal.temperature, top_k=goal.top_k)
            draw = Draw(seed=goal.seed, position=position, settings=settings)
        row = Row(slot=SLOT, tokens=(last.id,), draw=draw)
        return self._guest.step(StepPlan(rows=(row,)))[0].token  # type: ignore[no-any-return]

    def _change(self, change: Change) -> None:
        mutation = Mutation(
            rule=change.rule, params=json.loads(change.params), layers=change.layers
        )
        self._guest.load(SLOT, memoryview(self._guest.mutate(mutation, [memoryview(self._save())])))

    def _save(self) -> bytes:
        row = bytearray(self._guest.layout.row_bytes)
        self._guest.save(SLOT, memoryview(row))
        return bytes(row)
