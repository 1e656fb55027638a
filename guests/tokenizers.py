"""Finds the tokenizer of a checkpoint by the files that lie beside its weights."""

from __future__ import annotations

from pathlib import Path

from statevisor.guests import tokenizer_bytes, tokenizer_hf
from statevisor.guests.tokenizer_bytes import ByteTokenizer
from statevisor.guests.tokenizer_hf import HfTokenizer
from statevisor.guests.tokenizer_world import WorldTokenizer
from statevisor.hypervisor.errors import CheckpointInvalid

AnyTokenizer = ByteTokenizer | WorldTokenizer | HfTokenizer

_WORLD_FILES = "rwkv_vocab_*.txt"


def load_tokenizer(path: Path | str) -> AnyTokenizer:
    """The tokenizer of a checkpoint folder, or of the folder that a checkpoint file lies in.

    A byte tokenizer goes before a World vocabulary, that before a `tokenizer.json`: the first two
    are what RWKV models are trained on, while a tokenizer.json beside them is a conversion.
    Raises: CheckpointInvalid.
    """
    folder = Path(path)
    if not folder.is_dir():
        folder = folder.parent
    if (folder / tokenizer_bytes.FILE).exists():
        return ByteTokenizer.read(folder / tokenizer_bytes.FILE)
    world = sorted(folder.glob(_WORLD_FILES))
    if world:
        return WorldTokenizer.read(world[-1])
    if (folder / tokenizer_hf.FILE).exists():
        return HfTokenizer.read(folder)
    raise CheckpointInvalid(
        f"{folder} has no tokenizer",
        hint=(
            f"Put {tokenizer_hf.FILE}, a World vocabulary (rwkv_vocab_v20230424.txt) or"
            f" {tokenizer_bytes.FILE} beside the weights."
        ),
    )
