"""Tiles of the products of stacked weights, chosen by time on one H200 for two geometries.

`tests/bench/kernels.py` made them: it tries every tile for every launch of a layer and row bucket,
and takes only tiles that gave the same bits. Shapes that are not here follow `default_cut`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from statevisor.guests.linear_triton import Tile

BUCKETS = (16, 32, 64, 128, 256, 512, 1024)

#: (O, K) of a stack -> a tile for each of `BUCKETS`.
_CHOSEN: Mapping[tuple[int, int], str] = {
    # 1.5B downs
    (6720, 2048): (
        "64x16x256w4s4 64x32x128w4s5 64x64x128w4s6 64x128x64w4s8 "
        "128x128x64w8s6 128x256x64w8s4 256x128x64w8s4"
    ),
    # 1.5B ups
    (8192, 256): (
        "64x16x64w4s8 64x32x64w4s8 64x64x64w4s8 64x128x64w4s8 "
        "64x128x64w4s4 128x256x64w8s4 128x256x64w8s4"
    ),
    # 1.5B output
    (2048, 2048): (
        "64x16x256w4s4+ 64x32x128w4s5+ 64x64x128w4s4+ 64x128x128w4s4+ "
        "64x128x64w4s4+ 128x256x64w8s4+ 64x128x64w4s4"
    ),
    # 1.5B ffn key
    (8192, 2048): (
        "64x16x256w4s4 64x32x128w4s5 64x64x128w4s6 64x128x64w4s8 "
        "128x128x64w8s6 128x256x64w8s4 128x256x64w8s4"
    ),
    # 1.5B ffn value
    (2048, 8192): (
        "64x16x256w4s4+ 64x32x128w4s5+ 64x64x128w4s6+ 64x128x128w4s4+ "
        "128x128x64w8s6+ 128x256x64w8s4+ 128x128x64w8s4"
    ),
    # 1.5B head
    (65536, 2048): (
        "64x16x128w4s6 64x32x256w4s4 128x64x128w8s4 64x128x64w4s4 "
        "128x256x64w8s4 256x128x64w8s4 256x128x64w8s4"
    ),
    # 191M downs
    (2624, 768): (
        "64x16x256w4s4 64x32x256w4s4 64x64x128w4s6 64x64x64w4s8 "
        "64x128x64w4s8 64x128x64w4s4 256x128x64w8s4"
    ),
    # 191M ups
    (3072, 128): (
        "64x16x64w4s8 64x32x64w4s8 64x64x64w4s5 64x64x64w4s8 "
        "64x128x64w4s4 64x128x64w4s4 128x256x64w8s4"
    ),
    # 191M output
    (768, 768): (
        "64x16x64w4s8+ 64x32x64w4s8+ 64x64x64w4s8+ 64x64x64w4s8+ "
        "64x128x64w4s4+ 64x128x64w4s4+ 64x128x64w4s4+"
    ),
    # 191M ffn key
    (3072, 768): (
        "64x16x256w4s4 64x32x256w4s4 64x64x128w4s6 64x128x128w4s4 "
        "64x128x64w4s8 64x128x64w4s4 128x256x64w8s4"
    ),
    # 191M ffn value
    (768, 3072): (
        "64x16x128w4s6+ 64x32x128w4s5+ 64x64x128w4s4+ 64x128x128w4s4+ "
        "64x128x64w4s4+ 128x256x64w8s4+ 128x128x64w8s4+"
    ),
    # 191M head
    (65536, 768): (
        "64x16x256w4s4 64x32x256w4s4 64x64x64w4s5 64x128x64w4s4 "
        "128x256x64w8s4 128x256x64w8s4 256x128x64w8s4"
    ),
}

#: (O, K, bucket) -> tile, as `Stacks` takes it.
TILES: Mapping[tuple[int, int, int], Tile] = MappingProxyType(
    {
        (features, inner, size): Tile.parse(text)
        for (features, inner), row in _CHOSEN.items()
        for size, text in zip(BUCKETS, row.split(), strict=True)
    }
)
