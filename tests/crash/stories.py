"""What a life was told: the acknowledgements of one data folder, folded into stories.

A story is a tuple of marks in the order in which they reached an actor: tokens of a prompt, tokens
that were generated under a goal, mutations. Before an operation begins its life writes an `ask`;
when it is told that it is done, an `ack`. After a crash an actor must be where its acks say, or
where the one operation that was asked and not acknowledged would have taken it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Goal(NamedTuple):
    """How a token was drawn."""

    seed: int
    temperature: float
    top_k: int


class Token(NamedTuple):
    id: int
    goal: Goal | None  #: None: of a prompt


class Change(NamedTuple):
    """A mutation."""

    rule: str
    params: str  #: JSON
    layers: tuple[int, ...] | None


Story = tuple[Token | Change, ...]


def length(story: Story) -> int:
    """Its tokens: the position it ends at."""
    return sum(type(mark) is Token for mark in story)


def cut(story: Story, position: int) -> Story:
    """The story up to a position, mutations right there included."""
    for index, mark in enumerate(story):
        if type(mark) is Token:
            if not position:
                return story[:index]
            position -= 1
    return story


def prompt(tokens: Iterable[int]) -> Story:
    return tuple(Token(one, None) for one in tokens)


def bare(story: Story) -> tuple[int | Change, ...]:
    """A story as the catalog knows it: without goals."""
    return tuple(mark.id if type(mark) is Token else mark for mark in story)


class Allowed(NamedTuple):
    """Where an actor may stand: behind a story, and at most `more` tokens drawn under a goal."""

    story: Story
    goal: Goal | None = None
    more: int = 0


@dataclass(slots=True)
class Actor:
    """One actor as acknowledged."""

    id: str
    name: str
    seed: int
    story: Story
    asked: dict[str, Any] | None = None  #: what is under way
    opened: bool = False  #: its turn, if one is under way
    deleted: bool = False
    versions: dict[int, int] = field(default_factory=dict)  #: seq -> position
    images: set[int] = field(default_factory=set)  #: positions of this story with a durable image


def goal_of(asked: dict[str, Any], actor_seed: int) -> Goal:
    seed = asked["seed"]
    return Goal(actor_seed if seed is None else seed, asked["temperature"], asked["top_k"])


class Stories:
    """All of one data folder."""

    def __init__(self) -> None:
        self.actors: dict[str, Actor] = {}
        self.born: dict[str, tuple[Allowed, ...]] = {}  #: by name: asked for, not acknowledged
        self.turns: dict[str, int] = {}  #: ended ones: position
        self.places: dict[str, Story] = {}  #: by handle
        self.tokens = 0  #: acknowledged
        self.done = 0  #: operations acknowledged
        self.refused: list[str] = []  #: operations that should have been done

    def read(self, lines: Iterable[bytes]) -> None:
        """Fold what one life wrote; what it left open stays asked."""
        for line in lines:
            if line.endswith(b"}"):
                event = json.loads(line)
                if event["is"] == "refused":
                    self.refused.append(event["why"])
                else:
                    getattr(self, f"_{event['is']}_{event['op']}", self._other)(event)

    def settle(self, found: dict[str, Story], ids: dict[str, tuple[str, int]]) -> None:
        """Take for true what was found after a crash: by id, the story; by id, name and seed."""
        for key, actor in [*self.actors.items()]:
            if (actor.asked or {}).get("op") in ("mutate", "rollback"):
                actor.images.clear()
            actor.asked, actor.opened = None, False
            if key in found:
                actor.story = found[key]
            else:
                actor.deleted = True
        for key, story in found.items():
            name, seed = ids[key]
            if key not in self.actors:
                self.actors[key] = Actor(key, name, seed, story)
            else:
                self.actors[key].seed = seed
        self.born.clear()

    def allowed(self, actor: Actor) -> tuple[Allowed, ...]:
        """Where an actor may stand now."""
        story, asked = actor.story, actor.asked
        here = Allowed(story)
        if asked is None:
            return (here,)
        match asked["op"]:
            case "append":
                return (here, Allowed(story + prompt(asked["prompt"])))
            case "generate":
                goal = goal_of(asked, actor.seed)
                if actor.opened:
                    told = length(story) - asked["begin"]
                    return (Allowed(story, goal, asked["max_tokens"] - told),)
                more = Allowed(story + prompt(asked["prompt"]), goal, asked["max_tokens"])
                return (here, more)
            case "mutate":
                return (here, Allowed((*story, change_of(asked))))
            case "rollback":
                return (here, Allowed(self.target(actor, asked["to"])))
            case _:
                return (here,)

    def target(self, actor: Actor, place: str | int) -> Story:
        """The story that a place of an actor's past stands for."""
        return cut(actor.story, place) if isinstance(place, int) else self.places[place]

    # -- asks ------------------------------------------------------------------------------------
    def _other(self, event: dict[str, Any]) -> None:
        key = event.get("actor")
        if key is not None:
            self.actors[key].asked = event if event["is"] == "ask" else None
        self.done += event["is"] == "ack"

    def _ask_create(self, event: dict[str, Any]) -> None:
        self.born[event["name"]] = (Allowed(prompt(event["prompt"])),)

    def _ask_disown(self, event: dict[str, Any]) -> None:
        # Whoever passes that place may have no image there any more.
        for actor in self.actors.values():
            actor.images.discard(event["position"])
        self._other(event)

    def _ask_fork(self, event: dict[str, Any]) -> None:
        # It does not wait for a turn, so it is not what the parent has under way.
        story = self.target(self.actors[event["parent"]], event["at"])
        for name in event["names"]:
            self.born[name] = (Allowed(story),)

    def _ask_generate(self, event: dict[str, Any]) -> None:
        actor = self.actors[event["actor"]]
        actor.asked, actor.opened = event, False

    # -- acks ------------------------------------------------------------------------------------
    def _ack_create(self, event: dict[str, Any]) -> None:
        (allowed,) = self.born.pop(event["name"])
        self._add(event["actor"], event["name"], event["seed"], allowed.story)
        self.done += 1

    def _ack_fork(self, event: dict[str, Any]) -> None:
        for key, name, seed in event["children"]:
            (allowed,) = self.born.pop(name)
            self._add(key, name, seed, allowed.story)
        self.done += 1

    def _add(self, key: str, name: str, seed: int, story: Story) -> None:
        self.actors[key] = Actor(key, name, seed, story)
        self._version(key, 0)

    def _version(self, key: str, seq: int) -> None:
        actor = self.actors[key]
        actor.versions[seq] = length(actor.story)
        self.places[f"{key}@{seq}"] = actor.story

    def _ack_append(self, event: dict[str, Any]) -> None:
        actor = self._done(event)
        actor.story += prompt(actor.asked["prompt"])  # type: ignore[index]
        self._end(actor, event)

    def _ack_opened(self, event: dict[str, Any]) -> None:
        actor = self.actors[event["actor"]]
        assert actor.asked is not None
        actor.story += prompt(actor.asked["prompt"])
        actor.asked = {**actor.asked, "begin": length(actor.story)}
        actor.opened = True

    def _ack_token(self, event: dict[str, Any]) -> None:
        actor = self.actors[event["actor"]]
        assert actor.asked is not None
        assert event["at"] == length(actor.story), "tokens are told in order"
        actor.story += (Token(event["token"], goal_of(actor.asked, actor.seed)),)
        self.tokens += 1

    def _ack_generate(self, event: dict[str, Any]) -> None:
        self._end(self._done(event), event)

    def _end(self, actor: Actor, event: dict[str, Any]) -> None:
        assert event["position"] == length(actor.story), (event, length(actor.story))
        self.turns[event["turn"]] = event["position"]
        actor.asked, actor.opened = None, False

    def _ack_snapshot(self, event: dict[str, Any]) -> None:
        # A snapshot beside a turn may name tokens that are committed and not told yet.
        actor = self.actors[event["actor"]]
        actor.versions[event["seq"]] = event["position"]
        if event["position"] <= length(actor.story):
            self.places[f"{actor.id}@{event['seq']}"] = cut(actor.story, event["position"])
        self.done += 1

    def _ack_mutate(self, event: dict[str, Any]) -> None:
        actor = self._done(event)
        actor.story = (*actor.story, change_of(actor.asked))  # type: ignore[arg-type]
        actor.images.clear()
        self._version(actor.id, event["seq"])
        actor.asked = None

    def _ack_rollback(self, event: dict[str, Any]) -> None:
        actor = self._done(event)
        actor.story = self.target(actor, actor.asked["to"])  # type: ignore[index]
        actor.seed = event["seed"]
        actor.images.clear()
        actor.asked = None

    def _ack_hibernate(self, event: dict[str, Any]) -> None:
        actor = self._done(event)
        if event["image"] and length(actor.story) > 1:
            actor.images.add(length(actor.story))
        actor.asked = None

    def _ack_delete(self, event: dict[str, Any]) -> None:
        actor = self._done(event)
        actor.deleted, actor.asked = True, None

    def _done(self, event: dict[str, Any]) -> Actor:
        actor = self.actors[event["actor"]]
        assert actor.asked is not None, event
        self.done += 1
        return actor


def change_of(asked: dict[str, Any]) -> Change:
    layers = asked["layers"]
    return Change(
        asked["rule"],
        json.dumps(asked["params"], sort_keys=True),
        None if layers is None else tuple(layers),
    )


def fit(
    choices: Sequence[Allowed], tokens: Sequence[int], changes: Sequence[tuple[int, Change]]
) -> Story | None:
    """The allowed story that a transcript with its mutations is, goals and all; None if none is."""
    marks: list[int | Change] = []
    for at in range(len(tokens) + 1):
        marks += [change for position, change in changes if position == at]
        marks += tokens[at : at + 1]
    for choice in choices:
        known = bare(choice.story)
        rest = marks[len(known) :]
        if tuple(marks[: len(known)]) != known or len(rest) > choice.more:
            continue
        if all(isinstance(mark, int) for mark in rest):
            return choice.story + tuple(Token(mark, choice.goal) for mark in rest)  # type: ignore[arg-type]
    return None
