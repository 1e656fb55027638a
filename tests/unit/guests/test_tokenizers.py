from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import rwkv
from tokenizers import Tokenizer, decoders, models

from statevisor.guests.tokenizer_bytes import ByteTokenizer
from statevisor.guests.tokenizer_hf import HfTokenizer
from statevisor.guests.tokenizer_world import WorldTokenizer
from statevisor.guests.tokenizers import load_tokenizer
from statevisor.hypervisor.errors import CheckpointInvalid


def test_the_file_decides_and_the_trained_vocabulary_goes_first(tmp_path: Path) -> None:
    library = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    library.decoder = decoders.ByteLevel()
    library.save(str(tmp_path / "tokenizer.json"))
    assert isinstance(load_tokenizer(tmp_path), HfTokenizer)
    vocabulary = Path(rwkv.__file__).parent / "rwkv_vocab_v20230424.txt"
    shutil.copyfile(vocabulary, tmp_path / vocabulary.name)
    assert isinstance(load_tokenizer(tmp_path), WorldTokenizer)
    ByteTokenizer().write(tmp_path / "byte_tokenizer.json")
    assert isinstance(load_tokenizer(str(tmp_path)), ByteTokenizer)


def test_a_checkpoint_file_has_its_tokenizer_beside_it(tmp_path: Path) -> None:
    ByteTokenizer().write(tmp_path / "byte_tokenizer.json")
    (tmp_path / "model.pth").write_bytes(b"")
    assert load_tokenizer(tmp_path / "model.pth").digest == ByteTokenizer().digest


def test_no_tokenizer_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(CheckpointInvalid, match="has no tokenizer") as caught:
        load_tokenizer(tmp_path)
    assert "rwkv_vocab_v20230424.txt" in caught.value.hint
