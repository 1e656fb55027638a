"""Any `tokenizer.json`, as long as each of its tokens stands for bytes of its own.

That holds for byte-level vocabularies (a visible character per byte) and for those with byte
fallback or a visible space. Text never encodes to a special token, whatever it spells.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from statevisor.guests.tokenizer_bytes import utf8, vocabulary_digest
from statevisor.hypervisor.errors import CheckpointInvalid

FILE = "tokenizer.json"

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_VISIBLE_SPACE = "\u2581"


class HfTokenizer:
    """A tokenizer of the `tokenizers` library with the bytes of each id."""

    def __init__(self, library: Library, bos: int | None, eos: frozenset[int]) -> None:
        """Raises: CheckpointInvalid (its tokens have no bytes of their own)."""
        spec = json.loads(library.to_str())
        library.encode_special_tokens = True
        self.bos = bos
        self.eos = eos
        self.vocab_size = max(library.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.digest = vocabulary_digest("tokenizer.json", spec, bos, eos)
        self._library = library
        self._bytes = _token_bytes(library, spec)

    @classmethod
    def read(cls, folder: Path) -> HfTokenizer:
        """From `tokenizer.json` and the settings beside it. Raises: CheckpointInvalid."""
        path = folder / FILE
        try:
            library = Library.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises plain Exception for every damage
            raise CheckpointInvalid(f"{path} cannot be read: {error}") from error
        settings = _settings(folder, "tokenizer_config.json")
        models = [_settings(folder, name) for name in ("generation_config.json", "config.json")]
        bos = _id_of(library, settings.get("bos_token"))
        ends = {_id_of(library, settings.get("eos_token"))}
        for model in models:
            ids = model.get("eos_token_id")
            ends.update(ids if isinstance(ids, list) else [ids])
        return cls(library, bos, frozenset(end for end in ends if isinstance(end, int)))

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text. Raises: InvalidRequest (it is no valid Unicode)."""
        utf8(text)
        return tuple(self._library.encode(text, add_special_tokens=False).ids)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token, or b"" for special tokens and ids without one."""
        return self._bytes.get(token, b"")


def _settings(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointInvalid(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointInvalid(f"{path} is no JSON object")
    return found


def _id_of(library: Library, token: Any) -> int | None:
    content = token.get("content") if isinstance(token, dict) else token
    return library.token_to_id(content) if isinstance(content, str) else None


def _token_bytes(library: Library, spec: dict[str, Any]) -> dict[int, bytes]:
    read = _reader(spec)
    found = {}
    for token, id_ in library.get_vocab(with_added_tokens=False).items():
        found[id_] = read(token)
    for added in spec.get("added_tokens") or ():
        found[added["id"]] = b"" if added["special"] else added["content"].encode()
    return found


def _reader(spec: dict[str, Any]) -> Callable[[str], bytes]:
    """How a token of this vocabulary spells its bytes."""
    steps = _steps(spec.get("decoder")) | _steps(spec.get("pre_tokenizer"))
    if "ByteLevel" in steps:
        table = _byte_level_table()
        return lambda token: b"".join(table.get(char) or char.encode() for char in token)
    if steps & {"ByteFallback", "Metaspace"}:
        return _read_fallback
    raise CheckpointInvalid(
        f"tokenizer.json decodes by {', '.join(sorted(steps)) or 'nothing'}: the bytes of one token"
        " are not known; supported are ByteLevel, ByteFallback and Metaspace"
    )


def _steps(part: dict[str, Any] | None) -> set[str]:
    if part is None:
        return set()
    inner = (part.get("decoders") or []) + (part.get("pretokenizers") or [])
    return {part["type"]}.union(*map(_steps, inner)) - {"Sequence"}


def _read_fallback(token: str) -> bytes:
    byte = _BYTE_TOKEN.match(token)
    if byte:
        return bytes.fromhex(byte[1])
    return token.replace(_VISIBLE_SPACE, " ").encode()


def _byte_level_table() -> dict[str, bytes]:
    """The visible character of each byte: its own if it has one, else the next from U+0100 on."""
    visible = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    table = {chr(byte): bytes((byte,)) for byte in visible}
    return table | {chr(0x100 + place): bytes((byte,)) for place, byte in enumerate(hidden)}
