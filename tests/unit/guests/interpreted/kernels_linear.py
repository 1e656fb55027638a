"""The row-invariant product, interpreted.

The interpreter multiplies tiles by numpy, whose bits may follow the tile's shape as no tensor
core's do. So equality over tiles is asked of whole numbers, whose sums are exact: there it shows
that every tile reads and adds each product once. Equality over row counts is asked of any numbers.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch

from statevisor.guests.linear_triton import (
    TARGET_PROGRAMS,
    Tile,
    TritonLinear,
    bucket,
    default_tile,
    segments,
)
from statevisor.guests.ops_float64 import Float64Ops

ACTS = (torch.float32, torch.float16)
TILES = [
    Tile(block_o=block_o, block_n=block_n, warps=4, stages=2, spread=spread)
    for block_o, block_n, spread in product((64, 128), (16, 32), (False, True))
]


@pytest.fixture
def linear():
    return TritonLinear(torch.device("cpu"))


@pytest.mark.parametrize("activation", [None, "tanh", "sigmoid", "relu2"])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("shape", [(64, 256), (100, 320), (96, 40)])
def test_product_matches_float64(linear, draw, distance, act, shape, activation):
    x, weight = draw(5, shape[1], dtype=act), draw(*shape, dtype=act) / shape[1] ** 0.5
    got = linear(x, weight, activation)
    assert got.dtype == act
    wanted = Float64Ops().linear(x, weight, activation)
    assert distance(got, wanted) < {torch.float32: 1e-6, torch.float16: 1e-3}[act]


@pytest.mark.parametrize("act", ACTS)
def test_an_activation_of_great_numbers_is_finite(linear, act):
    x = torch.tensor([[-200.0], [200.0]], dtype=act).expand(2, 64).contiguous()
    weight = torch.ones(64, 64, dtype=act)
    for activation, wanted in (("tanh", (-1.0, 1.0)), ("sigmoid", (0.0, 1.0))):
        assert linear(x, weight, activation)[:, 0].tolist() == list(wanted)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("shape", [(192, 1024), (72, 200)])
def test_every_tile_adds_each_product_once(linear, tile, shape):
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(-3, 4, (37, shape[1]), generator=generator).half()
    weight = torch.randint(-2, 3, shape, generator=generator).half()
    assert segments(shape) > 1 or shape[1] < 256
    got = linear.group([(x, weight, None)], tile)[0]
    assert torch.equal(got.double(), x.double() @ weight.double().T)
    assert not linear._arrivals.any()


@pytest.mark.parametrize("act", ACTS)
def test_a_row_has_the_same_bits_for_every_row_count_and_place(linear, draw, act):
    x, weight = draw(33, 256, dtype=act), draw(72, 256, dtype=act)
    tile = Tile(block_o=64, block_n=16, warps=4, stages=2, spread=True)
    wanted = linear.group([(x, weight, None)], tile)[0]
    for rows in (1, 7, 16, 17):
        assert torch.equal(linear.group([(x[:rows], weight, None)], tile)[0], wanted[:rows])
        some = torch.randperm(33, generator=torch.Generator().manual_seed(rows))[:rows]
        assert torch.equal(linear.group([(x[some], weight, None)], tile)[0], wanted[some])


def test_a_row_of_nans_stays_alone(linear, draw):
    x, weight = draw(19, 256, dtype=torch.float16), draw(64, 256, dtype=torch.float16)
    wanted = linear(x, weight)
    x[[0, 17]] = torch.nan
    got = linear(x, weight)
    assert got[[0, 17]].isnan().all()
    kept = [row for row in range(19) if row not in (0, 17)]
    assert torch.equal(got[kept], wanted[kept])


def test_what_decides_the_bits_is_a_function_of_the_weight_alone():
    for features, inner in product((64, 96, 768, 2048, 8192, 65536), (32, 96, 768, 2048, 8192)):
        parts = segments((features, inner))
        assert parts & (parts - 1) == 0
        # No segment is empty: an empty one would add a zero where another cut adds none.
        assert parts == 1 or -(-inner // 64) // parts >= 2
    assert segments((2048, 2048)) == 4
    assert segments((8192, 2048)) == segments((65536, 2048)) == 1


def test_tiles_give_every_multiprocessor_work_or_are_the_smallest():
    for features, rows in product((96, 2048, 65536), (1, 3, 17, 64, 100, 256, 1000, 4096)):
        tile = default_tile([(features, 2048)], rows, torch.bfloat16)
        programs = tile.programs([(features, 2048)], rows)
        assert programs >= TARGET_PROGRAMS or tile.block_o == 64
        assert not tile.spread or programs < TARGET_PROGRAMS
    assert [bucket(rows) for rows in (1, 16, 17, 1000, 5000)] == [16, 16, 32, 1024, 1024]


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("act", ACTS)
def test_a_group_gives_the_bits_of_single_products(linear, draw, act, spread):
    shapes = [(128, 256, None), (40, 256, "tanh"), (96, 512, "sigmoid"), (130, 72, "relu2")]
    products = [
        (draw(5, inner, dtype=act), draw(features, inner, dtype=act), activation)
        for features, inner, activation in shapes
    ]
    tile = Tile(block_o=64, block_n=16, warps=4, stages=2, spread=spread)
    grouped = linear.group(products, tile)
    for product_, got in zip(products, grouped, strict=True):
        assert torch.equal(got, linear(*product_))
    assert not linear._arrivals.any()
