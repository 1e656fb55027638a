from __future__ import annotations

from pathlib import Path

import pytest
import rwkv
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rwkv.rwkv_tokenizer import TRIE_TOKENIZER

from statevisor.guests.tokenizer_world import WorldTokenizer
from statevisor.hypervisor.errors import CheckpointInvalid, InvalidRequest

VOCABULARY = Path(rwkv.__file__).parent / "rwkv_vocab_v20230424.txt"

#: Pieces that overlap in many ways.
PIECES = [
    "  ",
    "\n\n",
    "    ",
    "the",
    " the",
    "...",
    "=====",
    "é",
    "中文",
    "😀",
    "123",
    "\r\n",
    "\t",
]


@pytest.fixture(scope="module")
def world() -> WorldTokenizer:
    return WorldTokenizer.read(VOCABULARY)


@pytest.fixture(scope="module")
def authors() -> TRIE_TOKENIZER:
    return TRIE_TOKENIZER(str(VOCABULARY))


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.sampled_from(PIECES) | st.text(st.characters(codec="utf-8")), max_size=12).map(
        "".join
    )
)
@example("User: What is 2+2?\n\nAssistant: 4. Ein Wort, naïve café, 東京タワー, прив́ет.")
def test_ids_are_those_of_the_authors_trie(
    world: WorldTokenizer, authors: TRIE_TOKENIZER, text: str
) -> None:
    ids = world.encode(text)
    assert list(ids) == authors.encode(text)
    assert b"".join(map(world.token_bytes, ids)).decode() == text


def test_every_token_of_the_list_is_read(world: WorldTokenizer, authors: TRIE_TOKENIZER) -> None:
    assert len(authors.idx2token) == 65529
    assert all(world.token_bytes(id_) == token for id_, token in authors.idx2token.items())


def test_specials(world: WorldTokenizer) -> None:
    assert (world.bos, world.eos, world.vocab_size) == (0, frozenset({0}), 65536)
    assert [world.token_bytes(id_) for id_ in (0, 65530, 65535, -1)] == [b""] * 4
    assert 0 not in world.encode("\0<|endoftext|>")


def test_half_a_surrogate_pair_is_a_bad_request(world: WorldTokenizer) -> None:
    with pytest.raises(InvalidRequest):
        world.encode("\udfff")


BYTES = [f"{byte + 1} {bytes([byte])!r} 1" for byte in range(256)]


def read(folder: Path, lines: list[str]) -> WorldTokenizer:
    (folder / "v.txt").write_text("\n".join(lines) + "\n")
    return WorldTokenizer.read(folder / "v.txt")


def test_the_digest_is_of_the_parsed_list(tmp_path: Path) -> None:
    plain = read(tmp_path, [*BYTES, "257 'ab' 2"])
    assert read(tmp_path, ["257 b'\\x61b' 2", "", *reversed(BYTES)]).digest == plain.digest
    assert read(tmp_path, [*BYTES, "258 'ab' 2"]).digest != plain.digest
    assert read(tmp_path, [*BYTES, "257 'ac' 2"]).digest != plain.digest


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "all 256 single bytes"),
        (BYTES[:-1], "all 256 single bytes"),
        ([*BYTES, "257 '' 0"], "no empty token"),
        ([*BYTES, "257 'ab' 3"], "line 257: .* is not `id literal length`"),
        ([*BYTES, "257 ab 2"], "line 257"),
        ([*BYTES, "257 12 2"], "line 257"),
        ([*BYTES, "257"], "line 257"),
        ([*BYTES, "1 'ab' 2"], "line 257: id 1 is there twice"),
        ([*BYTES, "257 'a' 1"], "a token twice"),
        ([*BYTES, "0 'ab' 2"], "ids outside"),
        ([*BYTES, "65536 'ab' 2"], "ids outside"),
    ],
)
def test_damaged_lists_are_told(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(CheckpointInvalid, match=message):
        read(tmp_path, lines)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointInvalid, match="cannot be read"):
        WorldTokenizer.read(tmp_path / "none.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointInvalid, match="cannot be read"):
        WorldTokenizer.read(tmp_path / "binary.txt")
