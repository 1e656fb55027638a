"""What one training document is: pieces of text with the weight their bytes have in the loss."""

from __future__ import annotations

from typing import NamedTuple

#: Ids 0..255 are the bytes; sixteen special tokens follow.
BOS, EOS, VOCABULARY = 256, 257, 272

PLAIN, ANSWER, UNSCORED = 2, 8, 0  #: weights of a byte in the loss


class Piece(NamedTuple):
    """A run of text of one weight; `end` puts the end token behind it."""

    text: str
    weight: int = PLAIN
    end: bool = False
    kind: str = ""  #: of the question that this piece answers


class Span(NamedTuple):
    """Where an answer lies in a document's ids, end token included."""

    kind: str
    start: int
    stop: int


class Encoded(NamedTuple):
    """A document as ids, the weight of each id as a target, and its answers."""

    ids: list[int]
    weights: list[int]
    answers: list[Span]


def encode(pieces: list[Piece]) -> Encoded:
    """Ids of a document; it begins with BOS, which is never a target."""
    ids, weights, answers = [BOS], [UNSCORED], []
    for piece in pieces:
        start = len(ids)
        ids += piece.text.encode()
        if piece.end:
            ids.append(EOS)
        weights += [piece.weight] * (len(ids) - start)
        if piece.kind:
            answers.append(Span(piece.kind, start, len(ids)))
    return Encoded(ids, weights, answers)


def text_of(pieces: list[Piece]) -> str:
    """The document as text, without its special tokens."""
    return "".join(piece.text for piece in pieces)
