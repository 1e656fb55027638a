"""Reading the novels out of R's lazy-load database."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import pytest

from statevisor.guests.demo.prose import excerpt, novels, paragraphs

_DATABASE = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"


def vector(strings: list[str], version: int = 3) -> bytes:
    """A character vector as R serialises it (XDR)."""
    head = b"X\n" + struct.pack(">iii", version, 0, 0)
    if version == 3:
        head += struct.pack(">i", 5) + b"UTF-8"
    body = struct.pack(">ii", 16, len(strings))
    for string in strings:
        body += struct.pack(">ii", 9, len(string.encode())) + string.encode()
    return head + body


def package(folder: Path, *vectors: bytes) -> Path:
    path = folder / _DATABASE
    path.parent.mkdir(parents=True)
    chunks = (struct.pack(">I", len(data)) + zlib.compress(data) for data in vectors)
    path.write_bytes(b"".join(chunks))
    return folder


@pytest.mark.parametrize("version", [2, 3])
def test_novels_are_the_long_vectors_of_the_database(tmp_path: Path, version: int) -> None:
    novel = [f"line {number} — é" for number in range(1500)]
    other = b"X\n" + struct.pack(">iii", 2, 0, 0) + struct.pack(">ii", 14, 0)
    unpacked = package(tmp_path, vector(["short"]), other, vector(novel, version))

    assert novels(unpacked) == [novel]


def test_a_package_without_novels_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no novel"):
        novels(package(tmp_path, vector(["short"])))


def test_paragraphs_are_joined_lines_without_headings() -> None:
    lines = [
        "CHAPTER I",
        "",
        "Emma was _very_ clever--or so it seemed to",
        "everyone " * 6,
        "",
        "No.",
    ]

    assert list(paragraphs(lines)) == [
        "Emma was very clever - or so it seemed to " + " ".join(["everyone"] * 6)
    ]


def test_an_excerpt_is_a_document_of_bounded_length() -> None:
    prose = [f"Paragraph {number}. " + "Words follow. " * 12 for number in range(30)]
    rng = random.Random(1)

    lengths = [len(excerpt(rng, prose)[0].text) for _ in range(50)]

    assert 150 < min(lengths) <= max(lengths) <= 901
