from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import AnyStr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statevisor.hypervisor.text import StopMatcher, TextStream

#: Bytes that meet every rule of UTF-8: leads of each length, continuations, bounds, surrogates.
TRICKY = st.lists(
    st.sampled_from(
        [
            b"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",
            *map(bytes, zip(b"a\n\x80\xbf\xc0\xc3\xe2\x82\xac\xed\xa0\xf0\x9f\x98\xf4\x90\xff")),
        ]
    ),
    max_size=24,
).map(b"".join)
TEXT = st.text(alphabet="ab<|é", max_size=24)
STOPS = st.lists(st.text(alphabet="ab<|é", min_size=1, max_size=5), max_size=4)


def pieces_of(whole: AnyStr, cuts: Sequence[int]) -> list[AnyStr]:
    edges = [0, *sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
    return [whole[a:b] for a, b in pairwise(edges)]


CUTS = st.lists(st.integers(0, 100), max_size=8)


@given(TRICKY | st.binary(max_size=30), CUTS)
def test_any_split_decodes_as_the_whole(data: bytes, cuts: list[int]) -> None:
    stream = TextStream()
    text = "".join(map(stream.feed, pieces_of(data, cuts))) + stream.flush()
    assert text == data.decode(errors="replace")


@given(st.text(st.characters(codec="utf-8")))
def test_every_whole_character_comes_out_at_once(text: str) -> None:
    stream, data, out = TextStream(), text.encode(), ""
    for end in range(1, len(data) + 1):
        out += stream.feed(data[end - 1 : end])
        assert out == data[:end].decode(errors="ignore")


def test_control_decoding_each_piece_by_itself_breaks_characters() -> None:
    pieces = pieces_of("né😀".encode(), [2, 5])
    assert "".join(piece.decode(errors="replace") for piece in pieces) != "né😀"


def test_an_incomplete_end_is_told_at_the_end() -> None:
    stream = TextStream()
    assert stream.feed(b"a\xe2\x82") == "a"
    assert stream.flush() == "\ufffd"


def cut_of(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """What stays of a text, by looking at every end in turn."""
    for end in range(1, len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: end - max(map(len, met))], True
    return text, False


@given(TEXT, STOPS, CUTS)
def test_any_split_is_cut_as_the_whole(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    out = "".join(map(matcher.feed, pieces_of(text, cuts)))
    assert (out + matcher.flush(), matcher.stopped) == cut_of(text, stops)


@given(TEXT, STOPS)
def test_as_much_as_possible_comes_out_at_once(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    out = ""
    for index, char in enumerate(text):
        out += matcher.feed(char)
        if matcher.stopped:
            return
        seen = text[: index + 1]
        held = max(
            (n for stop in stops for n in range(1, len(stop)) if seen.endswith(stop[:n])),
            default=0,
        )
        assert out == seen[: len(seen) - held]


@pytest.mark.parametrize(
    ("stops", "pieces", "out"),
    [
        (["<|end|>"], ["Hi", "<", "|e", "nd", "|> and more", "never"], "Hi"),
        (["<|end|>"], ["Hi <|e", "t cetera"], "Hi <|et cetera"),
        (["aab"], ["a", "a", "a", "b"], "a"),
        (["bcd", "c"], ["abcd"], "ab"),
        (["c", "bc"], ["abcd"], "a"),
        ([], ["a", "b"], "ab"),
        ([""], ["a", "b"], "ab"),
    ],
)
def test_cases(stops: list[str], pieces: list[str], out: str) -> None:
    matcher = StopMatcher(stops)
    assert "".join(map(matcher.feed, pieces)) + matcher.flush() == out


def test_nothing_comes_out_after_a_stop() -> None:
    matcher = StopMatcher(["x"])
    assert (matcher.feed("axb"), matcher.feed("c"), matcher.flush()) == ("a", "", "")
    assert matcher.stopped
