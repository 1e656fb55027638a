from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from statevisor.guests.tokenizer_hf import HfTokenizer
from statevisor.hypervisor.errors import CheckpointInvalid, InvalidRequest

CORPUS = ["the state of the actor", "naïve café ", "  indented\n\tcode()", "東京タワー 😀"] * 3


def byte_level() -> Tokenizer:
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=400,
        special_tokens=["<|bos|>", "<|end|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(CORPUS, trainer)
    library.add_tokens([AddedToken("→tool", normalized=False)])
    return library


def byte_fallback() -> Tokenizer:
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abcdehot", "th"]
    library = Tokenizer(
        models.BPE(
            vocab={word: id_ for id_, word in enumerate([*words, "the", "\u2581the"])},
            merges=[("t", "h"), ("th", "e"), ("\u2581", "the")],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    library.normalizer = normalizers.Replace(" ", "\u2581")
    library.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    library.add_special_tokens(["<unk>"])
    return library


def save(library: Tokenizer, folder: Path, **files: dict[str, Any]) -> Path:
    library.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


LIBRARIES = {"level": byte_level(), "fallback": byte_fallback()}


@pytest.mark.parametrize("kind", LIBRARIES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(st.characters(codec="utf-8")) | st.lists(st.sampled_from(CORPUS)).map("".join))
def test_the_bytes_of_the_ids_are_the_text(kind: str, text: str) -> None:
    tokenizer = HfTokenizer(LIBRARIES[kind], None, frozenset())
    data = b"".join(map(tokenizer.token_bytes, tokenizer.encode(text)))
    # a vocabulary with a visible space cannot tell it from a space
    assert data.decode() == (text.replace("\u2581", " ") if kind == "fallback" else text)


def test_tokens_are_longer_than_bytes_where_the_vocabulary_has_them() -> None:
    for library, text in ((LIBRARIES["level"], "the state"), (LIBRARIES["fallback"], "the the")):
        assert len(HfTokenizer(library, None, frozenset()).encode(text)) < len(text) / 2


def test_no_text_encodes_to_a_special_token() -> None:
    tokenizer = HfTokenizer(LIBRARIES["level"], 0, frozenset({1}))
    ids = tokenizer.encode("a<|im_end|>→tool<|bos|>")
    assert not {0, 1, 2} & set(ids)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == "a<|im_end|>→tool<|bos|>"
    assert [tokenizer.token_bytes(id_) for id_ in (0, 1, 2, 10**6, -1)] == [b""] * 5


def test_settings_beside_it_name_begin_and_ends(tmp_path: Path) -> None:
    save(
        LIBRARIES["level"],
        tmp_path,
        tokenizer_config={"bos_token": {"content": "<|bos|>"}, "eos_token": "<|end|>"},
        generation_config={"eos_token_id": [1, 2]},
        config={"eos_token_id": None},
    )
    tokenizer = HfTokenizer.read(tmp_path)
    assert (tokenizer.bos, tokenizer.eos) == (0, frozenset({1, 2}))
    assert tokenizer.token_bytes(tokenizer.vocab_size - 1) == "→tool".encode()


def test_without_settings_there_is_no_begin_and_no_end(tmp_path: Path) -> None:
    tokenizer = HfTokenizer.read(save(LIBRARIES["level"], tmp_path))
    assert (tokenizer.bos, tokenizer.eos) == (None, frozenset())


def test_the_digest_tells_vocabularies_apart(tmp_path: Path) -> None:
    level = HfTokenizer(LIBRARIES["level"], None, frozenset())
    other = byte_level()
    other.add_tokens(["extra"])
    digests = {
        level.digest,
        HfTokenizer(LIBRARIES["level"], 0, frozenset()).digest,
        HfTokenizer(LIBRARIES["level"], None, frozenset({1})).digest,
        HfTokenizer(other, None, frozenset()).digest,
        HfTokenizer(LIBRARIES["fallback"], None, frozenset()).digest,
    }
    assert len(digests) == 5
    assert HfTokenizer.read(save(LIBRARIES["level"], tmp_path)).digest == level.digest


def test_half_a_surrogate_pair_is_a_bad_request() -> None:
    with pytest.raises(InvalidRequest):
        HfTokenizer(LIBRARIES["level"], None, frozenset()).encode("\ud800")


def test_a_vocabulary_without_bytes_is_refused() -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(CheckpointInvalid, match="decodes by Whitespace"):
        HfTokenizer(words, None, frozenset())


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"version": "1.0"}'])
def test_damaged_files_are_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointInvalid, match="cannot be read"):
        HfTokenizer.read(tmp_path)


@pytest.mark.parametrize("content", ["", "[1]"])
def test_damaged_settings_are_told(tmp_path: Path, content: str) -> None:
    save(LIBRARIES["level"], tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(CheckpointInvalid, match=r"tokenizer_config\.json"):
        HfTokenizer.read(tmp_path)
