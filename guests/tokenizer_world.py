"""The RWKV World tokenizer: greedy longest match over a fixed list of byte strings.

The list is a text file of lines `id literal length`, the literal a Python string or bytes literal,
as in `rwkv_vocab_v20230424.txt`. Id 0 is no line of it: it stands between documents, so it both
begins and ends a transcript.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

from statevisor.guests.tokenizer_bytes import utf8, vocabulary_digest
from statevisor.hypervisor.errors import CheckpointInvalid

#: Rows of the embedding of every World model; the last few have no token.
VOCAB_SIZE = 65536
END = 0

_PLAIN = re.compile(r"(['\"])([^'\"\\]+)\1\Z")


class WorldTokenizer:
    """Encodes by the longest token at each place. Every byte is a token, so every text has ids."""

    def __init__(self, tokens: Mapping[int, bytes]) -> None:
        """Raises: CheckpointInvalid (the list is no World vocabulary)."""
        _check(tokens)
        self.vocab_size = VOCAB_SIZE
        self.bos: int | None = END
        self.eos = frozenset({END})
        self.digest = vocabulary_digest("world", dict(tokens))
        self._tokens = dict(tokens)
        self._ids = {token: id_ for id_, token in tokens.items()}
        self._lengths = _lengths(self._ids)

    @classmethod
    def read(cls, path: Path) -> WorldTokenizer:
        """From a vocabulary file. Raises: CheckpointInvalid."""
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointInvalid(f"{path} cannot be read: {error}") from error
        tokens: dict[int, bytes] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                id_, token = _parse(line)
            except (ValueError, SyntaxError) as error:
                raise CheckpointInvalid(
                    f"{path}, line {number}: {line[:60]!r} is not `id literal length`"
                ) from error
            if id_ in tokens:
                raise CheckpointInvalid(f"{path}, line {number}: id {id_} is there twice")
            tokens[id_] = token
        return cls(tokens)

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text. Raises: InvalidRequest (it is no valid Unicode)."""
        data = utf8(text)
        ids, at = [], 0
        while at < len(data):
            for length in self._lengths.get(data[at : at + 2], (1,)):
                token = self._ids.get(data[at : at + length])
                if token is not None:
                    break
            else:
                raise AssertionError("every byte is a token")
            ids.append(token)
            at += length
        return tuple(ids)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token, or b"" for the end token and ids without one."""
        return self._tokens.get(token, b"")


def _parse(line: str) -> tuple[int, bytes]:
    first, last = line.index(" "), line.rindex(" ")
    text = line[first + 1 : last]
    plain = _PLAIN.match(text)  # most lines; the general way is slow
    literal = plain[2] if plain else ast.literal_eval(text)
    token = literal.encode() if isinstance(literal, str) else literal
    if not isinstance(token, bytes) or len(token) != int(line[last:]):
        raise ValueError("the literal has another length")
    return int(line[:first]), token


def _check(tokens: Mapping[int, bytes]) -> None:
    if not all(END < id_ < VOCAB_SIZE for id_ in tokens):
        raise CheckpointInvalid(f"the World vocabulary has ids outside 1..{VOCAB_SIZE - 1}")
    if len(set(tokens.values())) != len(tokens):
        raise CheckpointInvalid("the World vocabulary has a token twice")
    missing = {bytes((byte,)) for byte in range(256)} - set(tokens.values())
    if missing or b"" in tokens.values():
        raise CheckpointInvalid(
            "the World vocabulary must have all 256 single bytes and no empty token"
        )


def _lengths(ids: Mapping[bytes, int]) -> dict[bytes, tuple[int, ...]]:
    """The lengths to try at a place, longest first, by the two bytes that are there."""
    found: dict[bytes, set[int]] = {}
    for token in ids:
        if len(token) > 1:
            found.setdefault(token[:2], {1}).add(len(token))
    return {head: tuple(sorted(lengths, reverse=True)) for head, lengths in found.items()}
