"""What one actor's state looks like: families, shapes, dtypes, bytes.

A layout is a description only; it knows no tensors. The bytes of one actor are one *row*: the
families in order, each layer-major, without gaps, so that the row is also the data section of a
safetensors file.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Literal

DTYPE_BYTES: dict[str, int] = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I64": 8, "I32": 4, "U8": 1}

Kind = Literal["fixed", "ring", "paged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFamily:
    """One kind of state tensor of a guest."""

    name: str  #: e.g. "wkv"
    shape: tuple[int, ...]  #: over all layers, e.g. [L, H, D, D]; the first axis is the layer
    dtype: str  #: safetensors name, e.g. "F32"
    kind: Kind = "fixed"

    @property
    def nbytes(self) -> int:
        """Bytes of this family in one row."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The families of one guest in row order."""

    families: tuple[StateFamily, ...]

    def __post_init__(self) -> None:
        names = [family.name for family in self.families]
        if len(set(names)) != len(names) or not names:
            raise ValueError(f"family names must be unique and at least one: {names}")
        for family in self.families:
            if family.nbytes % 8:
                raise ValueError(f"family {family.name} has {family.nbytes} bytes: not 8-aligned")

    @property
    def row_bytes(self) -> int:
        """Bytes of one actor's row."""
        return sum(family.nbytes for family in self.families)

    @property
    def layers(self) -> int:
        """Number of layers: the longest first axis."""
        return max(family.shape[0] for family in self.families)

    def offset(self, name: str) -> int:
        """Byte offset of a family in the row. Raises: KeyError."""
        at = 0
        for family in self.families:
            if family.name == name:
                return at
            at += family.nbytes
        raise KeyError(name)

    def family(self, name: str) -> StateFamily:
        """The family of that name. Raises: KeyError."""
        for family in self.families:
            if family.name == name:
                return family
        raise KeyError(name)

    @property
    def fingerprint(self) -> str:
        """Digest of shapes, dtypes and order: rows are interchangeable exactly when it is equal."""
        return _fingerprint(self.families)


@lru_cache(maxsize=64)  # every image asks for it, and a process has few layouts
def _fingerprint(families: tuple[StateFamily, ...]) -> str:
    text = json.dumps([[f.name, list(f.shape), f.dtype, f.kind] for f in families])
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:32]


#: Begins the fingerprint of a build that promises no bits.
INEXACT = "fast:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprints:
    """What an image and a journal are bound to."""

    layout: str  #: must match to load an image's bytes
    weights: str  #: hash of the loaded tensors and the parsed vocabulary
    build: str  #: kernels, mode, dtypes, library versions, device: must match to replay a journal

    @property
    def exact(self) -> bool:
        """Whether a replay on this build gives the bits that it gave before."""
        return not self.build.startswith(INEXACT)
