"""Tiles of the row-invariant product, chosen by time on one H200 for two geometries.

`tests/bench/kernels.py` made them: it tries every tile for every launch of a layer and row bucket,
and takes only tiles that gave the same bits. Shapes that are not here follow `default_tile`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from statevisor.guests.linear_triton import Tile

BUCKETS = (16, 32, 64, 128, 256, 512, 1024)

#: (sum of O, greatest K) of a launch -> a tile for each of `BUCKETS`.
_CHOSEN: Mapping[tuple[int, int], str] = {
    # 1.5B rkv+downs
    (6656, 2048): (
        "64x16x64w4s5+ 64x32x128w4s4+ 64x64x64w4s5 64x64x64w4s5 "
        "64x128x64w4s4 64x128x64w4s4 128x128x64w8s4"
    ),
    # 1.5B rkv+downs of the first layer
    (6592, 2048): (
        "64x16x64w4s5+ 64x32x128w4s4+ 64x64x64w4s5 64x64x64w4s5 "
        "64x128x64w4s4 64x128x64w4s4 128x128x64w8s4"
    ),
    # 1.5B ups
    (8192, 256): (
        "64x16x64w4s5 64x16x128w4s4 64x32x128w4s4 64x64x64w4s5 "
        "64x128x64w4s4 64x128x64w4s4 64x128x64w4s4"
    ),
    # 1.5B ups of the first layer
    (6144, 256): (
        "64x16x64w4s5 64x16x128w4s4 64x32x128w4s4 64x64x64w4s5 "
        "64x128x64w4s4 64x128x64w4s4 64x128x64w4s4"
    ),
    # 1.5B output
    (2048, 2048): (
        "64x16x256w4s3+ 64x16x128w4s4+ 64x32x128w4s4+ 64x64x128w4s3+ "
        "64x128x64w4s4+ 64x64x64w4s5 128x128x64w8s4"
    ),
    # 1.5B ffn key
    (8192, 2048): (
        "64x16x256w4s3 64x32x128w4s4 64x64x64w4s5 64x64x64w4s5 "
        "64x128x64w4s4 128x256x64w8s3 128x256x64w8s3"
    ),
    # 1.5B ffn value
    (2048, 8192): (
        "64x16x256w4s3+ 64x32x128w4s4+ 64x64x128w4s3+ 64x64x128w4s3+ "
        "128x128x64w8s4+ 128x128x64w8s4+ 128x128x64w8s4"
    ),
    # 1.5B head
    (65536, 2048): (
        "64x16x128w4s5 64x32x64w4s5 64x64x64w4s5 64x128x64w4s4 "
        "128x128x64w8s4 128x256x64w8s3 128x256x64w8s3"
    ),
    # 191M rkv+downs
    (2592, 768): (
        "64x16x128w4s4+ 64x32x128w4s4+ 64x32x64w4s5+ 64x128x64w4s4+ "
        "64x64x64w4s5 64x128x64w4s4 64x128x64w4s4"
    ),
    # 191M rkv+downs of the first layer
    (2560, 768): (
        "64x16x128w4s4+ 64x32x128w4s4+ 64x32x64w4s5+ 64x128x64w4s4+ "
        "64x64x64w4s5 64x128x64w4s4 64x128x64w4s4"
    ),
    # 191M ups
    (3072, 128): (
        "64x16x64w4s5 64x32x64w4s5 64x32x64w4s5 64x64x64w4s5 "
        "64x64x64w4s5 64x128x64w4s4 128x256x64w8s3"
    ),
    # 191M ups of the first layer
    (2304, 128): (
        "64x16x64w4s5 64x32x64w4s5 64x32x64w4s5 64x64x64w4s5 "
        "64x64x64w4s5 64x128x64w4s4 128x256x64w8s3"
    ),
    # 191M output
    (768, 768): (
        "64x16x256w4s3+ 64x16x128w4s4+ 64x32x128w4s4+ 64x64x128w4s3+ "
        "64x64x128w4s3+ 64x128x64w4s4+ 64x64x64w4s5"
    ),
    # 191M ffn key
    (3072, 768): (
        "64x16x64w4s8+ 64x32x128w4s4+ 64x32x64w4s5+ 64x64x64w4s5 "
        "64x64x64w4s5 64x128x64w4s4 64x128x64w4s4"
    ),
    # 191M ffn value
    (768, 3072): (
        "64x16x128w4s5+ 64x16x64w4s5+ 64x32x64w4s5+ 64x128x64w4s4+ "
        "64x128x64w4s4+ 64x128x64w4s4+ 64x64x64w4s5"
    ),
    # 191M head
    (65536, 768): (
        "64x16x64w4s5 64x32x64w4s5 64x64x128w4s3 64x128x64w4s4 "
        "64x128x64w4s4 128x256x64w8s3 128x256x64w8s3"
    ),
}

#: (sum of O, greatest K, bucket) -> tile, as `TritonLinear` takes it.
TILES: Mapping[tuple[int, int, int], Tile] = MappingProxyType(
    {
        (features, inner, size): Tile.parse(text)
        for (features, inner), row in _CHOSEN.items()
        for size, text in zip(BUCKETS, row.split(), strict=True)
    }
)
