"""The pinned tiles: well formed, launchable, and none of what decides bits in them."""

import pytest

pytest.importorskip("triton")

torch = pytest.importorskip("torch")

from statevisor.guests.families.rwkv7 import Rwkv7Config, Rwkv7Layer, shapes  # noqa: E402
from statevisor.guests.families.rwkv7_fused import FusedLayer  # noqa: E402
from statevisor.guests.linear_triton import BLOCK_K, Tile  # noqa: E402
from statevisor.guests.stacks_triton import Stack, Stacks  # noqa: E402
from statevisor.guests.tiles import BUCKETS, TILES  # noqa: E402

#: The geometries the tiles were chosen for.
SIZES = {"191M": (768, 3072, 64, 64, 32, 128), "1.5B": (2048, 8192, 96, 96, 64, 256)}
GEOMETRIES = {
    name: Rwkv7Config(
        layers=2,
        width=width,
        heads=width // 64,
        ffn=ffn,
        rank_w=rank_w,
        rank_a=rank_a,
        rank_v=rank_v,
        rank_g=rank_g,
        vocab=65536,
    )
    for name, (width, ffn, rank_w, rank_a, rank_v, rank_g) in SIZES.items()
}

#: Bytes of shared memory one program may have on a Hopper GPU.
SHARED = 232448


def stacks(config: Rwkv7Config) -> tuple[Stack, ...]:
    """Those of a layer and of the head; no weight has memory."""
    with torch.device("meta"):
        tensors = {name: torch.empty(shape) for name, shape in shapes(config).items()}
        place = dict.fromkeys(Rwkv7Layer.__dataclass_fields__)
        square, wide = tensors["blocks.1.att.key.weight"], tensors["blocks.1.ffn.key.weight"]
        place |= dict.fromkeys(("receptance", "key", "value", "output"), square)
        place |= {"ffn_key": wide, "ffn_value": wide.T.contiguous()}
        for name in ("w1", "a1", "g1", "v1", "w2", "a2", "g2", "v2"):
            place[name] = tensors[f"blocks.1.att.{name}"].T.contiguous()
        vectors = ("w0", "a0", "v0", "k_k", "k_a", "r_k", "ln_x_weight", "ln_x_bias")
        for name in vectors:
            place[name] = torch.empty(config.heads, config.head_size)
        layer = FusedLayer(Rwkv7Layer(**place))
        return (*layer.stacks(), Stack(tensors["head.weight"]))


@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_stack_of_a_measured_geometry_has_a_tile_for_every_bucket(name: str) -> None:
    launcher, plain = Stacks(TILES), Stacks()
    for stack in stacks(GEOMETRIES[name]):
        for size in BUCKETS:
            tile = TILES[(*stack.shape, size)]
            assert stack.holds(tile), f"{tile} reads past a segment of {stack.shape}"
            assert launcher.tile(stack, size) == tile
            assert stack.holds(plain.tile(stack, size))


@pytest.mark.parametrize(("key", "tile"), TILES.items(), ids=str)
def test_a_tile_can_be_launched(key: tuple[int, int, int], tile: Tile) -> None:
    _, _, size = key
    assert tile.step % BLOCK_K == 0
    assert 2 * (tile.block_o + tile.block_n) * tile.step * tile.stages <= SHARED
    assert tile.block_o * tile.block_n // (32 * tile.warps) <= 128, "sums would not fit registers"
    # A bucket's tile must not be larger than the bucket.
    assert tile.block_n <= max(16, size)


def test_a_tile_reads_back_as_written() -> None:
    for tile in TILES.values():
        assert Tile.parse(str(tile)) == tile
    with pytest.raises(ValueError, match="unpack"):
        Tile.parse("64x64w4s5")


def test_other_tiles_show_in_what_fixes_the_bits() -> None:
    assert Stacks().describe() != Stacks(TILES).describe()
