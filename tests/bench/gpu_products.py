"""Times the products of stacked weights with every tile worth trying."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import torch
from gpu_models import GEOMETRIES, device_weights
from gpu_report import ACT, DEVICE, Ceilings, Report, copies, random, timed

from statevisor.guests.families import rwkv7, rwkv7_fused
from statevisor.guests.families.rwkv7_fused import FusedLayer
from statevisor.guests.linear_triton import Tile, bucket
from statevisor.guests.stacks_triton import Stack, Stacks, added

#: Row counts that stand for their bucket when tiles are chosen.
TUNED = (1, 32, 64, 128, 256, 512, 1024)


#: Tiles worth trying, by bucket; those that do not fit a stack are left out.
CUTS: dict[int, tuple[str, ...]] = {
    16: ("64x16x64w4s8", "64x16x128w4s6", "64x16x256w4s4"),
    32: ("64x32x64w4s8", "64x32x128w4s5", "64x32x128w4s8", "64x32x256w4s4"),
    64: (
        "64x64x64w4s5",
        "64x64x64w4s8",
        "64x64x128w4s4",
        "64x64x128w4s6",
        "128x64x64w8s6",
        "128x64x64w4s6",
        "128x64x128w8s4",
    ),
    128: (
        "64x64x64w4s8",
        "64x128x64w4s4",
        "64x128x64w4s8",
        "64x128x128w4s4",
        "128x128x64w8s4",
        "128x128x64w8s6",
        "128x128x128w8s3",
    ),
    256: (
        "64x128x64w4s4",
        "64x128x64w4s8",
        "64x256x64w4s4",
        "128x128x64w8s4",
        "128x128x64w8s6",
        "128x256x64w8s4",
        "256x128x64w8s4",
    ),
    512: ("64x128x64w4s4", "128x128x64w8s4", "128x256x64w8s4", "256x128x64w8s4"),
    1024: ("64x128x64w4s4", "128x128x64w8s4", "128x256x64w8s4", "256x128x64w8s4"),
}


def launches(config: rwkv7.Rwkv7Config) -> dict[str, Callable[[], Stack]]:
    """Makers of the stacks of a layer and of the head, of random weights."""
    one = replace(config, layers=2, vocab=64)

    def layer() -> FusedLayer:
        weights = rwkv7.Rwkv7Weights.from_tensors(one, device_weights(one), DEVICE, ACT)
        return FusedLayer(weights.layers[1])

    return {
        "downs": lambda: layer().downs,
        "ups": lambda: layer().ups,
        "output": lambda: layer().output,
        "ffn key": lambda: layer().ffn_key,
        "ffn value": lambda: layer().ffn_value,
        "head": lambda: Stack(
            random(config.vocab, config.width) / config.width**0.5, ahead=rwkv7_fused.AHEAD
        ),
    }


def cuts(stack: Stack, rows: int) -> Iterator[Tile]:
    """Tiles worth trying for a launch."""
    for text, spread in product(CUTS[bucket(rows)], ("+", "") if stack.segments > 1 else ("",)):
        tile = Tile.parse(text + spread)
        programs = stack.programs(tile, rows)
        sums = tile.block_o * tile.block_n // (32 * tile.warps)
        two = stack.segments > 1 and not spread
        if stack.holds(tile) and not (two and (sums > 64 or programs < 90)):
            yield tile


def operand(stack: Stack, rows: int) -> torch.Tensor:
    """x [planes x rows, columns] of the greatest column any region reads."""
    columns = max(region.column + region.inner for region in stack.regions)
    return random(stack.planes * rows, columns)


def stacks(report: Report, limits: Ceilings) -> None:
    """Every launch of a layer with every tile, beside the library; the best are kept as chosen."""
    for geometry in report.geometries:
        for name, make in launches(GEOMETRIES[geometry]).items():
            first = make()
            found = [first, *(make() for _ in range(copies(first.weight.nbytes) - 1))]
            for rows in TUNED:
                if report.left() < 0:
                    return
                _launch(report, limits, f"{geometry} {name}", rows, found)


def _launch(report: Report, limits: Ceilings, name: str, rows: int, found: Sequence[Stack]) -> None:
    launch, stack = Stacks(dependent=True), found[0]
    dtype = torch.float32 if name.endswith("head") else None
    x = operand(stack, rows)
    weights = sum(region.width * region.inner for region in stack.regions)
    inputs = {(region.plane, region.column): region.inner for region in stack.regions}
    moved = 2 * (weights + rows * (sum(inputs.values()) + stack.shape[0]))
    library = timed([partial(_library, x, one, rows) for one in found], 3)
    wanted = whole(launch(x, stack, dtype))
    alone = whole(launch(x[:1], stack, dtype)) if stack.planes == 1 else None
    error = _distance(x, stack, rows, wanted)
    same = alone is None or torch.equal(alone, wanted[:1])
    times, tiles = {}, {}
    for tile in cuts(stack, rows):
        if not torch.equal(whole(launch(x, stack, dtype, tile)), wanted):
            report.add(part="stack", launch=name, rows=rows, other_bits=str(tile))
            continue
        tiles[str(tile)] = tile
        calls = [partial(launch, x, one, dtype, tile) for one in found]
        times[str(tile)] = round(timed(calls, 3), 3)
    best = min(times, key=times.__getitem__)
    report.tiles[(*stack.shape, bucket(rows))] = tiles[best]
    report.add(
        part="stack",
        launch=name,
        rows=rows,
        us=times[best],
        tile=best,
        library_us=library,
        floor_us=limits.floor(moved, 2.0 * rows * weights),
        error=error,
        row_alone=same,
        all_us=times,
    )


def whole(out: torch.Tensor) -> torch.Tensor:
    """[N, O] of what a launch gives."""
    return added(out) if out.dim() == 3 else out


def _distance(x: torch.Tensor, stack: Stack, rows: int, got: torch.Tensor) -> float:
    """Relative distance of the first plain region from float64."""
    region = next((one for one in stack.regions if one.activation is None), None)
    if region is None:
        return 0.0
    plane = x[region.plane * rows :][:rows, region.column :][:, : region.inner].double()
    wide = slice(region.begin, region.begin + region.width)
    wanted = plane @ stack.weight[wide, : region.inner].double().T
    return float((got[:, wide].double() - wanted).norm() / wanted.norm())


def _library(x: torch.Tensor, stack: Stack, rows: int) -> list[torch.Tensor]:
    planes = x.view(stack.planes, rows, x.shape[1])
    return [
        planes[one.plane][:, one.column : one.column + one.inner]
        @ stack.weight[one.begin : one.begin + one.width, : one.inner].T
        for one in stack.regions
    ]
