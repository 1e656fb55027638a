"""Public-domain prose: Jane Austen's six novels, out of Debian's `r-cran-janeaustenr` package.

The package is not shipped. Download and unpack it, then write the text that `train.py --prose`
reads:

    apt-get download r-cran-janeaustenr && dpkg -x r-cran-janeaustenr_*.deb unpacked
    python -m statevisor.guests.demo.prose unpacked austen.txt

R keeps the novels as character vectors in a lazy-load database: chunks of a 4-byte length and a
zlib stream, each an XDR serialisation. Only the one type needed is read here.
"""

from __future__ import annotations

import argparse
import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from statevisor.guests.demo.documents import PLAIN, Piece

_DATABASE = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
_STRINGS = 16  #: R's type number of a character vector
_LONG = 1000  #: a novel has many lines; shorter vectors are something else


def novels(unpacked: Path) -> list[list[str]]:
    """The lines of each novel. Raises: FileNotFoundError, ValueError (no novel in the package)."""
    found = [lines for lines in _vectors((unpacked / _DATABASE).read_bytes()) if len(lines) > _LONG]
    if not found:
        raise ValueError(f"no novel in {unpacked}")
    return found


def paragraphs(lines: list[str]) -> Iterator[str]:
    """Paragraphs of a novel on one line each, plain ASCII, headings left out."""
    for block in "\n".join(lines).split("\n\n"):
        text = " ".join(block.split()).replace("_", "").replace("--", " - ")
        if len(text) > 60 and text.isascii() and not text.isupper():
            yield text


def excerpt(rng: random.Random, prose: list[str]) -> list[Piece]:
    """Some consecutive paragraphs as a document, 200 to 900 bytes long."""
    start, wanted = rng.randrange(len(prose)), rng.randint(200, 600)
    text = prose[start]
    for following in prose[start + 1 : start + 9]:
        if len(text) >= wanted:
            break
        text += "\n" + following
    return [Piece(text[:900] + "\n", PLAIN)]


def _vectors(database: bytes) -> Iterator[list[str]]:
    """Every character vector stored in a lazy-load database."""
    at = 0
    while at + 4 < len(database):
        stream = zlib.decompressobj()
        data = stream.decompress(database[at + 4 :])
        at = len(database) - len(stream.unused_data)
        if data[:2] == b"X\n":
            yield _strings(data)


def _strings(data: bytes) -> list[str]:
    """The strings of an XDR serialisation, or [] if it is of another type."""

    def integer(at: int) -> int:
        return int(struct.unpack_from(">i", data, at)[0])

    at = 14
    if integer(2) == 3:  # since version 3 the native encoding's name follows
        at += 4 + integer(at)
    if integer(at) & 0xFF != _STRINGS:
        return []
    count, at = integer(at + 4), at + 8
    strings = []
    for _ in range(count):
        length = max(0, integer(at + 4))
        strings.append(data[at + 8 : at + 8 + length].decode())
        at += 8 + length
    return strings


def main() -> None:
    """Write the paragraphs of all novels, one a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("unpacked", type=Path, help="folder the package was unpacked to")
    parser.add_argument("output", type=Path, help="text file to write")
    options = parser.parse_args()
    text = [text for lines in novels(options.unpacked) for text in paragraphs(lines)]
    options.output.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
