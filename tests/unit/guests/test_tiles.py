"""The pinned tiles: well formed, launchable, and none of what decides bits in them."""

import pytest

pytest.importorskip("triton")

from statevisor.guests.linear_triton import BLOCK_K, COUNTERS, Tile, TritonLinear
from statevisor.guests.tiles import BUCKETS, TILES

#: Bytes of shared memory one program may have on a Hopper GPU.
SHARED = 232448


def test_every_launch_has_a_tile_for_every_bucket() -> None:
    launches = {key[:2] for key in TILES}
    assert set(TILES) == {(*launch, size) for launch in launches for size in BUCKETS}
    # The seven products of a 1.5B layer in one launch, and the first layer's six.
    assert {(6656, 2048), (6592, 2048)} <= launches


@pytest.mark.parametrize(("key", "tile"), TILES.items(), ids=str)
def test_a_tile_can_be_launched(key: tuple[int, int, int], tile: Tile) -> None:
    features, _, size = key
    assert tile.step % BLOCK_K == 0
    assert 2 * (tile.block_o + tile.block_n) * tile.step * tile.stages <= SHARED
    assert tile.block_o * tile.block_n // (32 * tile.warps) <= 128, "sums would not fit registers"
    # Up to sixteen segments each, and up to seven products that each round up to a tile.
    tiles = (features // tile.block_o + 7) * -(-size // tile.block_n)
    assert not tile.spread or 16 * tiles <= COUNTERS
    # A bucket's tile must not be larger than the bucket.
    assert tile.block_n <= max(16, size)


def test_a_tile_reads_back_as_written() -> None:
    for tile in TILES.values():
        assert Tile.parse(str(tile)) == tile
    with pytest.raises(ValueError, match="unpack"):
        Tile.parse("64x64w4s5")


def test_other_tiles_show_in_what_fixes_the_bits() -> None:
    torch = pytest.importorskip("torch")
    device = torch.device("cpu")
    plain, chosen = TritonLinear(device), TritonLinear(device, TILES)
    assert plain.describe() != chosen.describe()
