from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statevisor.guests.tokenizer_bytes import ByteTokenizer
from statevisor.hypervisor.errors import CheckpointInvalid, InvalidRequest

TOKENIZER = ByteTokenizer()


@given(st.text(st.characters(codec="utf-8")))
def test_a_text_comes_back(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert b"".join(map(TOKENIZER.token_bytes, ids)).decode() == text
    assert ids == tuple(text.encode())


def test_specials_have_no_bytes_and_no_text() -> None:
    assert (TOKENIZER.bos, TOKENIZER.eos) == (256, frozenset({257}))
    assert [TOKENIZER.token_bytes(token) for token in (256, 257, 271, 9999, -1)] == [b""] * 5
    assert max(TOKENIZER.encode("<|bos|><|end|>\u0100")) < 256


def test_half_a_surrogate_pair_is_a_bad_request() -> None:
    with pytest.raises(InvalidRequest, match="character 2"):
        TOKENIZER.encode("ab\ud800")


def test_a_file_gives_the_same_tokenizer(tmp_path: Path) -> None:
    for tokenizer in (TOKENIZER, ByteTokenizer(vocab_size=300, bos=None, eos=(299, 256))):
        tokenizer.write(tmp_path / "t.json")
        again = ByteTokenizer.read(tmp_path / "t.json")
        assert (again.vocab_size, again.bos, again.eos, again.digest) == (
            tokenizer.vocab_size,
            tokenizer.bos,
            tokenizer.eos,
            tokenizer.digest,
        )


def test_the_digest_tells_vocabularies_apart() -> None:
    others = [
        ByteTokenizer(vocab_size=273),
        ByteTokenizer(bos=None),
        ByteTokenizer(eos=()),
        ByteTokenizer(bos=257, eos=(256,)),
    ]
    assert len({tokenizer.digest for tokenizer in (TOKENIZER, *others)}) == 5
    assert ByteTokenizer().digest == TOKENIZER.digest


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"vocab_size": 272, "bos": 256}',
        '{"vocab_size": 272, "bos": 256, "eos": [257], "pad": 1}',
        '{"vocab_size": "272", "bos": 256, "eos": [257]}',
        '{"vocab_size": 272, "bos": 256, "eos": 257}',
        '{"vocab_size": 272, "bos": 272, "eos": [257]}',
        '{"vocab_size": 272, "bos": 1, "eos": [257]}',
        '{"vocab_size": 272, "bos": 256, "eos": [true]}',
    ],
)
def test_damaged_files_are_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(CheckpointInvalid):
        ByteTokenizer.read(tmp_path / "t.json")
    with pytest.raises(CheckpointInvalid, match="cannot be read"):
        ByteTokenizer.read(tmp_path / "none.json")
