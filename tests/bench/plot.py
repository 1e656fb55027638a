"""Draws docs/benchmarks/h200.json, an .svg per geometry beside it: `python tests/bench/plot.py`.

Tokens a second over the batch, both on logarithmic axes, in plain SVG without a library.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs" / "benchmarks"
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 430, 70, 40, 190, 50
#: Okabe and Ito's colours, which most colour-blind readers can tell apart.
COLOURS = {
    "engine loop, exact": "#0072B2",
    "engine loop, fast": "#56B4E9",
    "graph alone, exact": "#D55E00",
    "graph alone, F32 state": "#E69F00",
    "floor, F16 state": "#999999",
    "peer albatross": "#009E73",
    "peer wkvm_graphed": "#CC79A7",
}

Series = Mapping[str, Mapping[int, float]]


def main() -> None:
    report = json.loads((FOLDER / "h200.json").read_text())
    for geometry in {**report["decode"], **report["graph"]}:
        path = FOLDER / f"decode-{geometry}.svg"
        path.write_text(draw(f"RWKV-7 {geometry}, one {report['gpu']}", series(report, geometry)))
        sys.stdout.write(f"{path.name}\n")


def series(report: Mapping[str, Any], geometry: str) -> Series:
    """Every line of one plot: name and tokens a second by batch."""
    loop, graph = (report[key].get(geometry, {}) for key in ("decode", "graph"))
    found = {
        "engine loop, exact": loop.get("exact"),
        "engine loop, fast": loop.get("fast"),
        "graph alone, exact": graph.get("exact"),
        "graph alone, F32 state": report["graph_fp32_state"].get(geometry),
        "floor, F16 state": report["floor"].get(geometry),
    }
    for peer, by_geometry in report["peers"].items():
        found[f"peer {peer}"] = by_geometry.get(geometry)
    return {
        name: {int(batch): rate for batch, rate in line.items()}
        for name, line in found.items()
        if line
    }


def draw(title: str, lines: Series) -> str:
    """One plot as SVG."""
    batches = sorted({batch for line in lines.values() for batch in line})
    rates = [rate for line in lines.values() for rate in line.values()]
    low, high = math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates)))

    def x(batch: int) -> float:
        span = math.log2(batches[-1]) - math.log2(batches[0]) or 1.0
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(batch) - math.log2(batches[0])) / span

    def y(rate: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(rate)) / (high - low)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}: tokens a second</text>',
    ]
    for power in range(low, high + 1):
        at = y(10**power)
        out.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    for batch in batches:
        at = x(batch)
        out.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>')
        out.append(
            f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{batch}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">actors in a step</text>')
    for index, (name, line) in enumerate(lines.items()):
        colour = COLOURS[name]
        points = [(x(batch), y(rate)) for batch, rate in sorted(line.items())]
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        out.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
        level = TOP + 8 + 20 * index
        side = WIDTH - RIGHT + 14
        out.append(f'<path d="M{side} {level}h18" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="{side + 24}" y="{level + 4}">{escape(name)}</text>')
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    main()
