"""The byte tokenizer: ids 0..255 are the bytes of UTF-8, a few special tokens follow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from statevisor.hypervisor.errors import CheckpointInvalid, InvalidRequest

FILE = "byte_tokenizer.json"

_FIELDS = {"vocab_size", "bos", "eos"}


class ByteTokenizer:
    """One id per byte. Special tokens are known by id only: no text encodes to them."""

    def __init__(self, vocab_size: int = 272, bos: int | None = 256, eos: Iterable[int] = (257,)):
        self.vocab_size = vocab_size
        self.bos = bos
        self.eos = frozenset(eos)
        specials = self.eos if bos is None else {bos, *self.eos}
        if not all(256 <= special < vocab_size for special in specials):
            raise CheckpointInvalid(
                f"special tokens {sorted(specials)} of the byte tokenizer are not in"
                f" 256..{vocab_size - 1}"
            )
        self.digest = vocabulary_digest("bytes", vocab_size, bos, self.eos)

    @classmethod
    def read(cls, path: Path) -> ByteTokenizer:
        """From a file of `{"vocab_size", "bos", "eos"}`. Raises: CheckpointInvalid."""
        try:
            fields = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise CheckpointInvalid(f"{path} cannot be read: {error}") from error
        if not isinstance(fields, dict) or fields.keys() != _FIELDS or not _whole(fields):
            raise CheckpointInvalid(f"{path} must hold the numbers vocab_size, bos and a list eos")
        return cls(**fields)

    def write(self, path: Path) -> None:
        """Save what `read` reads."""
        fields = {"vocab_size": self.vocab_size, "bos": self.bos, "eos": sorted(self.eos)}
        path.write_text(json.dumps(fields) + "\n")

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text. Raises: InvalidRequest (it is no valid Unicode)."""
        return tuple(utf8(text))

    def token_bytes(self, token: int) -> bytes:
        """The byte, or b"" for a special token."""
        return bytes((token,)) if 0 <= token < 256 else b""


def utf8(text: str) -> bytes:
    """The bytes of a text. Raises: InvalidRequest (half of a surrogate pair)."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the text has half of a surrogate pair at character {error.start}"
        ) from error


def vocabulary_digest(kind: str, *parts: Any) -> str:
    """Digest of a parsed vocabulary; sets are taken as sorted, bytes as hexadecimal."""
    text = json.dumps([kind, *map(_plain, parts)], sort_keys=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _plain(part: Any) -> Any:
    if isinstance(part, frozenset):
        return sorted(part)
    if isinstance(part, dict):
        return {str(key): _plain(value) for key, value in part.items()}
    return part.hex() if isinstance(part, bytes) else part


def _whole(fields: dict[str, Any]) -> bool:
    eos = fields["eos"]
    numbers = [fields["vocab_size"], *(eos if isinstance(eos, list) else [None])]
    if fields["bos"] is not None:
        numbers.append(fields["bos"])
    return all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
