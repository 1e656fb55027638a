"""Documents as ids with weights and the places of their answers."""

from __future__ import annotations

import random

from statevisor.guests.demo.documents import ANSWER, BOS, EOS, PLAIN, UNSCORED, Piece, encode
from statevisor.guests.demo.stories import tale


def test_a_document_is_its_bytes_behind_bos() -> None:
    encoded = encode([Piece("Q: é?\nA:"), Piece(" Finn.", ANSWER, end=True, kind="who_found")])

    assert encoded.ids == [BOS, *"Q: é?\nA: Finn.".encode(), EOS]
    (answer,) = encoded.answers
    assert bytes(encoded.ids[answer.start : answer.stop - 1]) == b" Finn."
    assert encoded.ids[answer.stop - 1] == EOS


def test_weights_say_what_is_taught() -> None:
    encoded = encode([Piece("ab"), Piece(" c", ANSWER, end=True, kind="k"), Piece("\n", UNSCORED)])

    assert encoded.weights == [UNSCORED, PLAIN, PLAIN, ANSWER, ANSWER, ANSWER, UNSCORED]


def test_special_tokens_stand_only_where_they_mean_something() -> None:
    rng = random.Random(1)
    for _ in range(30):
        encoded = encode(tale(rng))
        assert encoded.ids.count(BOS) == 1
        assert len(encoded.ids) == len(encoded.weights)
        ends = [place for place, token in enumerate(encoded.ids) if token == EOS]
        assert [answer.stop - 1 for answer in encoded.answers] == ends
