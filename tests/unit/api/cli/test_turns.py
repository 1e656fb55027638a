"""Append, generate, cancel."""

from __future__ import annotations

import json
from typing import Any

GENERATE = "/v1/actors/alice/generate"


def token(index: int, text: str) -> str:
    data = {"index": index, "token_id": index, "text": text, "position": index}
    return f"event: token\ndata: {json.dumps(data)}\n\n"


def turn(value: dict[str, Any]) -> str:
    return f"event: turn\ndata: {json.dumps(value)}\n\n"


def test_generate_prints_the_text_as_it_streams(server: Any, cli: Any, shapes: Any) -> None:
    server.stream(GENERATE, token(0, "Fi"), token(1, "nn."), turn(shapes.turn()))

    ran = cli("generate", "alice", "Who?", "-t", "0.5", "--stop", "x", "--stop", "y", "--no-commit")

    assert (ran.code, ran.out, ran.err) == (0, "Finn.\n", "")
    assert server.asked[0].body == {
        "prompt": "Who?",
        "temperature": 0.5,
        "stop": ["x", "y"],
        "commit": False,
        "stream": True,
    }


def test_generate_as_json_is_the_turn_and_no_stream(server: Any, cli: Any, shapes: Any) -> None:
    server.answer("POST", GENERATE, shapes.turn())

    ran = cli("generate", "alice", "-o", "json")

    assert json.loads(ran.out) == shapes.turn()
    assert server.asked[0].body == {}


def test_a_stream_without_an_end_is_a_failure(server: Any, cli: Any) -> None:
    server.stream(GENERATE, token(0, "Fi"))

    ran = cli("generate", "alice")

    assert ran.code == 5
    assert ran.out == "Fi"
    assert "statevisor generate alice" in ran.err


def test_a_cancelled_turn_is_said_on_stderr(server: Any, cli: Any, shapes: Any) -> None:
    server.stream(GENERATE, token(0, "Fi"), turn(shapes.turn(finish_reason="cancelled")))

    ran = cli("generate", "alice")

    assert ran.code == 0
    assert "cancelled at position 9" in ran.err


def test_append_sends_token_ids(server: Any, cli: Any, shapes: Any) -> None:
    server.answer("POST", "/v1/actors/alice/append", shapes.turn(""))

    assert cli("append", "alice", "--tokens", "4,5").code == 0
    assert server.asked[0].body == {"token_ids": [4, 5]}


def test_token_ids_that_are_none_are_a_usage_error(server: Any, cli: Any) -> None:
    assert cli("append", "alice", "--tokens", "four").code == 2


def test_transcript_is_the_text_or_the_whole_object(server: Any, cli: Any) -> None:
    told = {"object": "transcript", "text": "a\nb", "token_ids": [1], "segments": []}
    server.answer("GET", "/v1/actors/alice/transcript", told)

    assert cli("transcript", "alice").out == "a\nb\n"
    assert json.loads(cli("transcript", "alice", "--from", "3", "-o", "json").out) == told
    assert [asked.query for asked in server.asked] == [{}, {"from": "3"}]


def test_cancel_names_the_turn_if_given(server: Any, cli: Any) -> None:
    server.answer("POST", "/v1/actors/alice/cancel", {"turn": "turn_1"}, status=202)

    cli("cancel", "alice")
    cli("cancel", "alice", "--turn", "turn_1")

    assert [asked.body for asked in server.asked] == [{}, {"turn": "turn_1"}]
