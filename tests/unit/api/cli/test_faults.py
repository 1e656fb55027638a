"""How a command fails: exit codes, what is printed, no traceback."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from statevisor.api.cli.faults import exit_code, from_answer
from statevisor.api.cli.main import main
from statevisor.hypervisor.errors import (
    ActorNotFound,
    GenerationConflict,
    NotFound,
    StatevisorError,
    Unavailable,
)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (422, "invalid_request", 2),
        (422, "capability_missing", 2),
        (404, "actor_not_found", 3),
        (404, "version_not_found", 3),
        (409, "actor_busy", 4),
        (409, "incompatible_image", 4),
        (412, "generation_conflict", 4),
        (429, "quota_exceeded", 5),
        (503, "draining", 5),
        (503, "no_free_slot", 5),
        (401, "invalid_api_key", 1),
        (403, "forbidden", 1),
        (500, "internal", 1),
        (500, "image_corrupt", 1),
    ],
)
def test_exit_codes(server: Any, cli: Any, status: int, code: str, expected: int) -> None:
    server.refuse("GET", "/v1/actors/alice", status, code)

    ran = cli("info", "alice")

    assert ran.code == expected
    assert f"error ({code}): so it is" in ran.err
    assert "next:" in ran.err
    assert "Traceback" not in ran.out + ran.err


def test_an_unknown_code_is_judged_by_its_status() -> None:
    error = from_answer(409, {"code": "moon_phase", "detail": "full"})

    assert (error.code, exit_code(error)) == ("moon_phase", 4)


def test_an_openai_shaped_error_is_understood() -> None:
    error = from_answer(404, {"error": {"message": "gone", "code": "actor_not_found"}})

    assert isinstance(error, ActorNotFound)
    assert error.detail == "gone"


def test_the_servers_hint_wins_over_the_classes() -> None:
    assert from_answer(404, {"code": "not_found", "hint": "look left"}).hint == "look left"
    assert from_answer(404, {"code": "not_found"}).hint == NotFound.hint


def test_a_code_shared_by_parent_and_child_becomes_the_parent() -> None:
    assert type(from_answer(412, {"code": "generation_conflict"})) is GenerationConflict


def test_a_body_that_is_no_problem_still_gives_an_error() -> None:
    assert isinstance(from_answer(503, "<html>"), Unavailable)
    assert type(from_answer(500, None)) is StatevisorError


def test_no_server_is_unavailable(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:  # bound, not listening: nobody answers there
        taken.bind(("127.0.0.1", 0))
        code = main(["ls", "--url", f"http://127.0.0.1:{taken.getsockname()[1]}"])

    assert code == 5
    assert "statevisor serve" in capsys.readouterr().err


def test_an_address_that_is_none_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--url", "ftp://there"]) == 2
    assert "http://HOST:PORT" in capsys.readouterr().err


def test_an_answer_that_is_not_json_is_a_failure(server: Any, cli: Any) -> None:
    server.answer("GET", "/v1/actors/alice", raw=b"<html>hello</html>")

    ran = cli("info", "alice")

    assert ran.code == 1
    assert "error (answer_unreadable): the answer is not JSON" in ran.err
    assert "next: Is there a statevisor behind this URL?" in ran.err


@pytest.mark.parametrize("words", [["nonsense"], ["info"], ["ls", "--output", "xml"]])
def test_a_wrong_command_line_is_a_usage_error(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
