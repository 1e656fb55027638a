"""The byte vocabulary as files: `byte_tokenizer.json` for this program, a Hugging Face folder for
others.

    python -m statevisor.guests.demo.vocabulary guests/demo

In the folder, id b is the byte b for 0..255, and sixteen special tokens follow. Byte-level BPE
without merges gives exactly that, once the visible character of each byte has the byte as its id.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from statevisor.guests.demo.documents import BOS, EOS, VOCABULARY

SPECIALS = {BOS: "<|begin|>", EOS: "<|end|>"} | {
    id_: f"<|reserved_{id_}|>" for id_ in range(EOS + 1, VOCABULARY)
}

#: Turns as the model was taught them; an answer ends with the end token.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %} {{ message['content'] }}" + SPECIALS[EOS] + "\n\n"
    "{% else %}User: {{ message['content'] }}\n\nAssistant:{% endif %}{% endfor %}"
)


def visible(byte: int) -> str:
    """The character that byte-level BPE writes a byte as: its own, or the next from U+0100 on."""
    own = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    if byte in own:
        return chr(byte)
    return chr(0x100 + sum(1 for other in range(byte) if other not in own))


def files() -> dict[str, Any]:
    """The contents of the tokenizer folder by file name."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    specials = [
        {
            "id": id_,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for id_, content in SPECIALS.items()
    ]
    return {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": specials,
            "normalizer": None,
            "pre_tokenizer": level | {"use_regex": False},
            "post_processor": None,
            "decoder": level | {"use_regex": False},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {visible(byte): byte for byte in range(256)}
                | {content: id_ for id_, content in SPECIALS.items()},
                "merges": [],
            },
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIALS[BOS],
            "eos_token": SPECIALS[EOS],
            "clean_up_tokenization_spaces": False,
            "model_max_length": 1 << 30,
            "chat_template": CHAT_TEMPLATE,
        },
        "special_tokens_map.json": {"bos_token": SPECIALS[BOS], "eos_token": SPECIALS[EOS]},
    }


def write(model: Path) -> None:
    """Put both forms into a model's folder."""
    folder = model / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files().items():
        _write(folder / name, content)
    _write(model / "byte_tokenizer.json", {"vocab_size": VOCABULARY, "bos": BOS, "eos": [EOS]})


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description="write the byte vocabulary's files")
    parser.add_argument("model", type=Path, help="the model's folder")
    write(parser.parse_args().model)


if __name__ == "__main__":
    main()
