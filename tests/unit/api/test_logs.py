import json
import logging

import pytest
import structlog

from statevisor.api.logs import configure


@pytest.fixture(autouse=True)
def restored():
    root, ours = logging.getLogger(), logging.getLogger("statevisor")
    handlers, levels = root.handlers, (root.level, ours.level)
    yield
    root.handlers = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    structlog.reset_defaults()


def test_a_line_is_json_with_the_request_it_belongs_to(capsys):
    configure("info", "json")
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        structlog.get_logger("statevisor.part").info("event", n=1)
        logging.getLogger("library").info("chatter")
        logging.getLogger("library").warning("from %s", "elsewhere")
        structlog.get_logger("statevisor.part").debug("too quiet")
    ours, theirs = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert {k: ours[k] for k in ("event", "level", "n", "request_id")} == {
        "event": "event",
        "level": "info",
        "n": 1,
        "request_id": "r1",
    }
    assert ours["timestamp"].endswith("Z")
    assert (theirs["event"], theirs["request_id"]) == ("from elsewhere", "r1")


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_traceback_is_in_it_but_no_local_values(capsys, form):
    configure("info", form)
    try:
        secret = "s3cret"
        raise ValueError(len(secret))
    except ValueError:
        structlog.get_logger("statevisor.part").exception("failed")
    text = capsys.readouterr().err
    assert "ValueError: 6" in text
    assert "'s3cret'" not in text


def test_off_a_terminal_lines_are_json(capsys):
    configure("warning", "auto")
    structlog.get_logger("statevisor.part").warning("x")
    assert json.loads(capsys.readouterr().err)["event"] == "x"
