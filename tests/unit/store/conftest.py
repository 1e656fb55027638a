"""States for the image store's tests: layouts, metas and rows that follow from a number."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

import pytest

from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.layout import Fingerprints, Layout, StateFamily


class MakeMeta(Protocol):
    def __call__(
        self,
        *families: StateFamily,
        absorbed: int = 11,
        pending: tuple[int, ...] = (42,),
        weights: str = "sha256:w",
        build: str = "cpu torch 2.11",
    ) -> ImageMeta: ...


@pytest.fixture(scope="session")
def make_meta() -> MakeMeta:
    """A meta of the given families; of one small family if none is given."""

    def make(
        *families: StateFamily,
        absorbed: int = 11,
        pending: tuple[int, ...] = (42,),
        weights: str = "sha256:w",
        build: str = "cpu torch 2.11",
    ) -> ImageMeta:
        layout = Layout(
            families=families or (StateFamily(name="wkv", shape=(2, 2, 4), dtype="F32"),)
        )
        return ImageMeta(
            layout=layout,
            fingerprints=Fingerprints(layout=layout.fingerprint, weights=weights, build=build),
            position=absorbed + len(pending),
            absorbed=absorbed,
            pending=pending,
        )

    return make


@pytest.fixture(scope="session")
def make_row() -> Callable[[ImageMeta, int], memoryview]:
    """Row bytes that follow from a seed."""

    def make(meta: ImageMeta, seed: int = 0) -> memoryview:
        return memoryview(bytearray(random.Random(seed).randbytes(meta.layout.row_bytes)))

    return make
