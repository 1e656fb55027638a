"""The chat loop: messages in the guest's form, and the branches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterable[str]], None]:
    """Lines typed at the keyboard, then end of file."""

    def give(lines: Iterable[str]) -> None:
        left = iter(lines)

        def read(prompt: str = "") -> str:
            try:
                return next(left)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr("builtins.input", read)

    return give


@pytest.fixture
def talking(server: Any, shapes: Any) -> Any:
    """A server where alice answers every message."""
    server.answer("GET", "/v1/actors/alice", shapes.actor(position=0))
    server.answer("GET", "/v1/actors/alice", shapes.actor(position=0))
    server.answer("GET", "/v1/actors/alice", shapes.actor(position=40))
    server.answer("GET", "/v1/actors/alice/transcript", {"text": "Assistant: I see."})
    server.stream(
        "/v1/actors/alice/generate",
        'event: token\ndata: {"text": "I see."}\n\n',
        f"event: turn\ndata: {json.dumps(shapes.turn('I see.'))}\n\n",
    )
    return server


def sent(server: Any, path: str) -> list[Any]:
    return [asked.body for asked in server.asked if asked.path == path]


def test_messages_take_the_form_the_guest_was_taught(talking: Any, cli: Any, typed: Any) -> None:
    typed(["Hello", "", "Again"])

    ran = cli("chat", "alice")

    assert ran.code == 0
    assert "I see." in ran.out
    prompts = [body["prompt"] for body in sent(talking, "/v1/actors/alice/generate")]
    assert prompts == ["User: Hello\n\nAssistant:", "\n\nUser: Again\n\nAssistant:"]


def test_a_stop_text_that_is_there_is_not_said_twice(
    server: Any, cli: Any, typed: Any, shapes: Any
) -> None:
    server.answer("GET", "/v1/actors/alice", shapes.actor(position=40))
    server.answer("GET", "/v1/actors/alice/transcript", {"text": "I see.\n\nUser:"})
    server.stream(
        "/v1/actors/alice/generate", f"event: turn\ndata: {json.dumps(shapes.turn())}\n\n"
    )
    typed(["Again"])

    cli("chat", "alice")

    body = sent(server, "/v1/actors/alice/generate")[0]
    assert body["prompt"] == " Again\n\nAssistant:"
    assert body["stop"] == ["\n\nUser:"]


def test_ctrl_c_cuts_an_answer_and_the_chat_goes_on(
    server: Any, cli: Any, typed: Any, shapes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("statevisor.api.cli.chat.stream_turn", interrupted)
    server.answer("GET", "/v1/actors/alice", shapes.actor(position=0))
    typed(["Hello", "/help"])

    ran = cli("chat", "alice")

    assert ran.code == 0
    assert ran.out.index("(cancelled)") < ran.out.index("/snap")


def test_back_returns_to_where_a_message_began(
    talking: Any, cli: Any, typed: Any, shapes: Any
) -> None:
    talking.answer("POST", "/v1/actors/alice/rollback", shapes.actor())
    typed(["Hello", "Again", "/back", "/back", "/back"])

    ran = cli("chat", "alice")

    assert sent(talking, "/v1/actors/alice/rollback") == [{"to": 40}, {"to": 0}]
    assert "0 messages to take back" in ran.err


def test_fork_goes_on_as_the_child(server: Any, cli: Any, typed: Any, shapes: Any) -> None:
    server.answer("GET", "/v1/actors/alice", shapes.actor())
    child = shapes.actor("bob", parent="alice@2")
    server.answer("POST", "/v1/actors/alice/fork", shapes.listing(child), status=201)
    server.answer("POST", "/v1/actors/bob/snapshot", shapes.version("bob@1"), status=201)
    typed(["/fork bob", "/snap good"])

    ran = cli("chat", "alice")

    assert "bob goes on from alice@2" in ran.out
    assert "bob@1" in ran.out
    assert sent(server, "/v1/actors/alice/fork") == [{"count": 1, "names": ["bob"]}]
    assert sent(server, "/v1/actors/bob/snapshot") == [{"tag": "good"}]


def test_save_writes_a_snapshot_to_a_file(
    server: Any, cli: Any, typed: Any, shapes: Any, tmp_path: Path
) -> None:
    server.answer("GET", "/v1/actors/alice", shapes.actor())
    server.answer("POST", "/v1/actors/alice/snapshot", shapes.version("alice@3"), status=201)
    digest = f"blake3:{blake3(b'image').hexdigest()}"
    server.answer("GET", "/v1/versions/alice@3/export", raw=b"image")
    server.answer("GET", "/v1/versions/alice@3", shapes.version("alice@3", digest=digest))
    typed([f"/save {tmp_path / 'a.st'}", "/quit", "never sent"])

    cli("chat", "alice")

    assert (tmp_path / "a.st").read_bytes() == b"image"
    assert sent(server, "/v1/actors/alice/generate") == []


def test_an_actor_is_made_if_there_is_none(server: Any, cli: Any, typed: Any, shapes: Any) -> None:
    server.refuse("GET", "/v1/actors/new", 404, "actor_not_found")
    server.answer("POST", "/v1/actors", shapes.actor("new"), status=201)
    typed(["/help", "/nonsense"])

    ran = cli("chat", "new")

    assert ran.code == 0
    assert sent(server, "/v1/actors") == [{"name": "new"}]
    assert "/snap" in ran.out
    assert "not a command here" in ran.err
