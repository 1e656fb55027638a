"""An actor as the demonstration speaks to it, with everything that can be compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from statevisor.api.cli.client import Client, fields, path
from statevisor.api.cli.turns import turn_events

#: Alternatives asked for with each token: enough of the logits to see one wrong bit.
_LOGPROBS = 5


#: Marks the versions that are made only to learn a digest.
PROBE = {"probe": "digest"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One turn: its text, and all that must be equal where two turns are claimed to be equal."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: Any
    position: int

    def same(self, other: Answer) -> bool:
        """Equal tokens, positions and log-probabilities, to the last bit."""
        return (self.token_ids, self.logprobs, self.position) == (
            other.token_ids,
            other.logprobs,
            other.position,
        )


class Person:
    """One actor of a server."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    @classmethod
    def create(cls, client: Client, name: str, **body: Any) -> Person:
        """Make an actor."""
        return cls(client, client.post(path("actors"), {"name": name, **body})["name"])

    def at(self, client: Client) -> Person:
        """The same actor at another server (the one that took over its data)."""
        return Person(client, self.name)

    def info(self) -> dict[str, Any]:
        """The actor object."""
        found: dict[str, Any] = self._get()
        return found

    def append(self, text: str) -> None:
        """Let it read."""
        self._post("append", prompt=text)

    def answer(self, text: str | None = None, **settings: Any) -> Answer:
        """Let it speak."""
        turn = self._post("generate", prompt=text, logprobs=_LOGPROBS, **settings)
        return Answer(
            text=turn["text"].strip(),
            token_ids=tuple(turn["token_ids"]),
            logprobs=turn["logprobs"],
            position=turn["position"],
        )

    def stream(self, seen: Callable[[dict[str, Any]], None], **settings: Any) -> None:
        """Let it speak, token by token. Raises: Unavailable if the server goes."""
        for event in turn_events(self.client, self.name, fields(**settings)):
            if event.get("object") != "turn":
                seen(event)

    @classmethod
    def reading(cls, client: Client, name: str, tokens: tuple[int, ...], seed: int) -> Person:
        """Make an actor whose whole transcript is these tokens, read in one call."""
        for prompt in (tokens, tokens[1:]):  # the guest may put its BOS before a first prompt
            person = cls.create(client, name, token_ids=list(prompt), seed=seed)
            if person.tokens() == tokens:
                break
            person.remove()
        return person

    def digest(self) -> str:
        """Digest of the state it is in now."""
        probe: dict[str, Any] = self.client.post(
            path("actors", self.name, "snapshot"), {"labels": PROBE}, query={"wait": "true"}
        )
        return str(probe["digest"])

    def tokens(self) -> tuple[int, ...]:
        """Its whole transcript."""
        return tuple(self._get("transcript")["token_ids"])

    def snapshot(self, tag: str) -> str:
        """Name its state; returns the handle."""
        return str(self._post("snapshot", tag=tag)["handle"])

    def fork(self, names: list[str], **body: Any) -> list[Person]:
        """Make children."""
        made = self._post("fork", count=len(names), names=names, **body)["data"]
        return [Person(self.client, child["name"]) for child in made]

    def mutate(self, rule: str, **params: Any) -> str:
        """Change its state; returns the new version's handle."""
        return str(self._post("mutate", rule=rule, params=params)["handle"])

    def rollback(self, to: str, **body: Any) -> dict[str, Any]:
        """Take it back."""
        return self._post("rollback", to=to, **body)

    def hibernate(self, tier: str) -> dict[str, Any]:
        """Send it to a lower tier."""
        return self._post("hibernate", tier=tier)

    def resume(self) -> dict[str, Any]:
        """Bring it back."""
        return self._post("resume")

    def remove(self) -> None:
        """Delete it."""
        self.client.delete(path("actors", self.name))

    def _get(self, *parts: str) -> Any:
        return self.client.get(path("actors", self.name, *parts))

    def _post(self, verb: str, **body: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.post(path("actors", self.name, verb), fields(**body))
        return answer
