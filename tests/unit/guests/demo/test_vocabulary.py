"""The tokenizer's files: byte b is id b, in this program and for Hugging Face's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from statevisor.guests.demo import vocabulary
from statevisor.guests.demo.documents import BOS, EOS, VOCABULARY
from statevisor.guests.tokenizer_hf import HfTokenizer
from statevisor.guests.tokenizers import load_tokenizer

DEMO = Path(vocabulary.__file__).parent
TEXTS = (
    "Finn found a silver hat.\nQ: Who?\nA:",
    "Häuschen — 猫 🐉 é",
    " two  spaces\t\r\n\x00 and controls \x7f ",
    "<|end|> is no token in a text",
)


def test_the_shipped_files_are_what_the_script_writes(tmp_path: Path) -> None:
    vocabulary.write(tmp_path)

    written = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.json"))
    assert len(written) == 4
    for name in written:
        assert (DEMO / name).read_bytes() == (tmp_path / name).read_bytes(), name


def test_every_byte_is_its_own_id() -> None:
    spec = json.loads((DEMO / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))
    ids = spec["model"]["vocab"]

    assert len(ids) == VOCABULARY
    assert sorted(ids.values()) == list(range(VOCABULARY))
    assert [ids[vocabulary.visible(byte)] for byte in range(256)] == list(range(256))


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokenizers_library_encodes_to_bytes(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer" / "tokenizer.json"))
    tokenizer.encode_special_tokens = True

    ids = tokenizer.encode(text, add_special_tokens=False).ids

    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("text", TEXTS)
def test_both_forms_are_one_tokenizer(text: str) -> None:
    own, hf = load_tokenizer(DEMO), HfTokenizer.read(DEMO / "tokenizer")

    assert own.encode(text) == hf.encode(text) == tuple(text.encode())
    assert (own.bos, own.eos, own.vocab_size) == (hf.bos, hf.eos, hf.vocab_size)
    assert (own.bos, own.eos, own.vocab_size) == (BOS, {EOS}, VOCABULARY)
    assert all(own.token_bytes(id_) == hf.token_bytes(id_) for id_ in range(VOCABULARY))


def test_transformers_loads_the_folder_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(DEMO / "tokenizer"))

    for text in TEXTS[:3]:
        ids = tokenizer(text).input_ids
        assert ids == list(text.encode())
        assert tokenizer.decode(ids) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (BOS, EOS)
    assert len(tokenizer) == VOCABULARY


def test_the_chat_template_writes_turns_as_they_were_taught() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(DEMO / "tokenizer"))
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Who?"},
    ]

    text = tokenizer.apply_chat_template(turns, tokenize=False)

    assert text == ("<|begin|>User: Hi\n\nAssistant: Hello!<|end|>\n\nUser: Who?\n\nAssistant:")
