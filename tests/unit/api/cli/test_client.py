"""The HTTP client: headers, streams, files, and connections that break."""

from __future__ import annotations

import io
import socket
from typing import Any

import pytest

from statevisor.api.cli.client import Client, Event, path
from statevisor.hypervisor.errors import InvalidRequest, Unavailable


def test_the_token_is_sent_as_a_bearer(server: Any) -> None:
    server.answer("GET", "/x", {})

    Client(server.url, "secret").get("/x")
    Client(server.url).get("/x")

    sent = [asked.headers.get("Authorization") for asked in server.asked]
    assert sent == ["Bearer secret", None]


def test_a_prefix_in_the_url_is_kept(server: Any) -> None:
    server.answer("GET", "/behind/a/proxy/v1/tiers", {"data": []})

    Client(server.url + "/behind/a/proxy/").get(path("tiers"))


def test_while_the_model_loads_a_patient_client_asks_again(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statevisor.api.cli.client._AGAIN_S", 0.0)
    server.refuse("GET", "/x", 503, "model_loading")
    server.refuse("GET", "/x", 503, "model_loading")
    server.answer("GET", "/x", {"at": "last"})

    assert Client(server.url, patience_s=60).get("/x") == {"at": "last"}
    assert len(server.asked) == 3


@pytest.mark.parametrize(("code", "patience"), [("model_loading", 0.0), ("draining", 60.0)])
def test_nothing_else_is_waited_for(server: Any, code: str, patience: float) -> None:
    server.refuse("GET", "/x", 503, code)

    with pytest.raises(Unavailable):
        Client(server.url, patience_s=patience).get("/x")
    assert len(server.asked) == 1


def test_what_a_reader_raises_is_not_asked_again(server: Any) -> None:
    server.stream("/s", 'event: error\ndata: {"code":"model_loading","detail":"late"}\n\n')

    with pytest.raises(Unavailable, match="late"):
        list(Client(server.url, patience_s=60).events("/s", {}))
    assert len(server.asked) == 1


def test_events_are_parsed_with_names_ids_heartbeats_and_many_lines(server: Any) -> None:
    server.stream(
        "/s",
        ": heartbeat\n\n",
        'event: token\nid: 4\ndata: {"a":\n',
        "data: 1}\n\n",
        'data: "plain"\r\n\r\n',
    )

    assert list(Client(server.url).events("/s", {})) == [
        Event(name="token", data={"a": 1}, id="4"),
        Event(name="message", data="plain", id="4"),
    ]


def test_an_error_event_is_raised(server: Any) -> None:
    server.stream("/s", 'event: error\ndata: {"code":"draining","detail":"bye"}\n\n')

    with pytest.raises(Unavailable, match="bye"):
        list(Client(server.url).events("/s", {}))


def test_a_half_event_at_the_end_is_not_an_event(server: Any) -> None:
    server.stream("/s", 'data: 1\n\nevent: token\ndata: {"half')

    assert [event.data for event in Client(server.url).events("/s", {})] == [1]


def test_upload_and_download_carry_the_same_bytes(server: Any) -> None:
    data = bytes(range(256)) * 9000
    server.answer("POST", "/in", {"ok": True})
    server.answer("GET", "/out", raw=data)
    client = Client(server.url)

    assert client.upload("/in", io.BytesIO(data), len(data), {"name": "a"}) == {"ok": True}
    assert server.asked[0].body == data
    assert server.asked[0].query == {"name": "a"}
    with client.download("/out") as (length, chunks):
        assert length == len(data)
        assert b"".join(chunks) == data


def test_a_cut_answer_is_unavailable_not_half_an_answer(rude: str) -> None:
    with pytest.raises(Unavailable, match="before its answer was complete"):
        Client(rude).get("/x")


def test_a_cut_download_is_unavailable_not_half_a_file(rude: str) -> None:
    client = Client(rude)
    with pytest.raises(Unavailable), client.download("/x") as (_, chunks):
        b"".join(chunks)


def test_silence_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(Unavailable, match="no answer for"):
            Client(url, timeout_s=0.05).get("/x")


def test_an_error_of_the_reader_is_not_blamed_on_the_server(server: Any) -> None:
    server.answer("GET", "/out", raw=b"abc")

    with pytest.raises(BrokenPipeError), Client(server.url).download("/out"):
        raise BrokenPipeError


@pytest.mark.parametrize(
    "url",
    [
        *("http://[::1", "http://x:99999", "http://x:0", "http://x:y", "http://"),
        *("ftp://x", "http://x y", "http://é"),
    ],
)
def test_what_is_no_address_is_a_usage_error(url: str) -> None:
    with pytest.raises(InvalidRequest, match="is not the address of a server"):
        Client(url)


def test_a_name_that_no_host_can_have_is_nobodys(cli: Any) -> None:
    assert cli("ls", "--url", "http://.a..b:80").code == 5


@pytest.mark.parametrize("token", ["a\nb", "ü", "a b"])
def test_a_key_that_no_header_can_carry(token: str) -> None:
    with pytest.raises(InvalidRequest):
        Client("http://x", token)


def test_a_text_that_is_not_utf_8_is_not_sent(
    server: Any, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = io.TextIOWrapper(io.BytesIO(b"caf\xe9"), "utf-8", "surrogateescape")
    monkeypatch.setattr("sys.stdin", piped)
    for words in (
        ("create", "a", "--prompt", "-"),
        ("append", "a", "caf\udce9"),
        ("info", "caf\udce9"),
        ("ls", "-q", "caf\udce9"),
    ):
        ran = cli(*words)
        assert (ran.code, "is not UTF-8" in ran.err) == (2, True)
    assert server.asked == []


def test_text_is_sent_as_it_is(server: Any, cli: Any, shapes: Any) -> None:
    server.answer("POST", "/v1/actors/a/append", shapes.turn())

    assert cli("append", "a", "é 😀 \u2028").code == 0

    assert server.asked[0].body == {"prompt": "é 😀 \u2028"}


def test_a_number_that_is_not_finite_is_not_sent(server: Any, cli: Any) -> None:
    for words in (("generate", "a", "x", "-t", "nan"), ("mutate", "a", "decay", "alpha=NaN")):
        ran = cli(*words)
        assert (ran.code, "finite" in ran.err) == (2, True)
    assert server.asked == []
