"""Times the recurrence with every cut, and the norms with shift and mixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from gpu_models import GEOMETRIES, device_weights
from gpu_report import ACT, DEVICE, Ceilings, Report, copies, random, timed

from statevisor.guests.bank import Bank
from statevisor.guests.batch import pack
from statevisor.guests.families import rwkv7, rwkv7_fused
from statevisor.guests.mixers.time_triton import (
    prompt_kernel,
    prompt_keys_kernel,
    prompt_output_kernel,
    token_kernel,
)
from statevisor.guests.ops_triton import TritonOps
from statevisor.hypervisor.plan import Row

#: (rows under way, programs a multiprocessor, most registers) of the recurrence of single tokens.
TIME_CUTS = (
    (1, 1024, None),
    (2, 8, None),
    (3, 8, None),
    (4, 8, None),
    (3, 6, None),
    (3, 10, 200),
    (3, 12, 168),
)


#: Those that are used, for few rows and for many.
USED_CUTS = ((1, 1024, None), *((*walk, None) for walk in rwkv7_fused.WALKS.values()))


def kernels(report: Report, limits: Ceilings) -> None:
    """The recurrence with every cut, and the norms with shift and mixes, per call."""
    for rows, tokens in ((1, 1), (64, 1), (128, 1), (256, 1), (1024, 1), (1, 512), (32, 512)):
        for state in (torch.float16, torch.float32):
            if report.left() < 0:
                return
            recurrence(report, limits, rows, tokens, state)
    for rows in (1, 64, 256, 1024):
        _mixes(report, limits, rows)


def times(report: Report, limits: Ceilings) -> None:
    """The recurrence with the cuts that are used."""
    for rows, tokens in ((1, 1), (64, 1), (256, 1), (1, 512), (1, 1024), (32, 32), (4, 512)):
        for state in (torch.float16, torch.float32):
            recurrence(report, limits, rows, tokens, state, USED_CUTS)


def _mixes(report: Report, limits: Ceilings, rows: int) -> None:
    """Residual, norm and mixes, with four planes of sums and with one."""
    config = replace(GEOMETRIES["1.5B"], layers=1, vocab=64)
    model = rwkv7.Rwkv7Model.build(config, device_weights(config), TritonOps(DEVICE, ACT), "F16")
    bank = Bank(model.layout, rows, DEVICE)
    batch = pack([Row(slot=slot, tokens=(0,)) for slot in range(1, rows + 1)], DEVICE)
    layer, x = model.weights.layers[0], random(rows, config.width)
    norm = (layer.ln1_weight, layer.ln1_bias, 1e-5)
    for mixes, planes in ((6, 4), (1, 4), (6, 1), (1, 1)):
        parts = random(planes, rows, config.width).float()
        arguments = (x, None, parts, *norm, layer.mixes[:mixes], bank.layers("shift_att")[0], batch)
        report.add(
            part="mixes",
            rows=rows,
            mixes=mixes,
            planes=planes,
            us=timed([partial(model.fused._mix, *arguments)] * 24),
            floor_us=limits.floor(rows * config.width * (8 + 4 * planes + 2 * mixes)),
        )


def recurrence(
    report: Report,
    limits: Ceilings,
    rows: int,
    tokens: int,
    state: torch.dtype,
    tried: Sequence[tuple[int, int, int | None]] = TIME_CUTS,
) -> None:
    """The fused recurrence of `rows` rows of `tokens` tokens, with every cut."""
    heads, size, total = 32, 64, rows * tokens
    width, pitch = heads * size, 3 * heads * size + 576
    plan = [Row(slot=slot, tokens=(0,) * tokens) for slot in range(1, rows + 1)]
    batch, cells = pack(plan, DEVICE), heads * size * size
    downs, first, ups = random(total, pitch), random(total, pitch), random(total, 4 * width)
    vectors = random(heads, 8, size).float()
    out = torch.empty(total, width, dtype=ACT, device=DEVICE)
    y, keys = random(total, width).float(), random(total, heads, 6, size).float()
    bonus, block = random(total, heads).float(), rwkv7_fused.PROMPT_HEADS
    count = copies(rows * cells * state.itemsize) if tokens == 1 else 2
    banks = torch.zeros(count, rows + 1, heads, size, size, dtype=state, device=DEVICE)
    operands = (downs, ups, first, vectors)
    read = {"PITCH": pitch, "GATED": True}
    common = {
        "HEADS": heads,
        "DEPENDENT": True,
        "launch_pdl": True,
        "num_warps": 1,
        "enable_fp_fusion": False,
    }

    def single(bank: torch.Tensor, stages: int, each: int, registers: int | None) -> None:
        token_kernel[(heads, min(rows, each * 132 // heads))](
            *operands,
            bank,
            out,
            batch.slots,
            rows,
            STRIDE=cells,
            EPS=64e-5,
            STAGES=stages,
            WARPS=1,
            maxnreg=registers,
            **read,
            **common,
        )

    wide, blocks = state.itemsize == 2, (total, heads // block)
    few = {**common, "num_warps": block, "BLOCK_H": block}

    def before(bank: torch.Tensor) -> None:
        prompt_keys_kernel[blocks](*operands, keys, bonus, WIDE=wide, **read, **few)

    def chain(bank: torch.Tensor, warps: int = rwkv7_fused.PROMPT_WARPS) -> None:
        shared = {**common, "num_warps": warps, "WIDE": wide}
        prompt_kernel[(4 * heads, rows)](
            keys, bank, y, batch.slots, batch.starts, STRIDE=cells, **shared
        )

    def behind(bank: torch.Tensor) -> None:
        prompt_output_kernel[blocks](y, keys, bonus, ups, vectors, out, EPS=64e-5, **few)

    def prompt(bank: torch.Tensor) -> None:
        for part in (before, chain, behind):
            part(bank)

    parts = {"keys": before, "output": behind}
    parts |= {f"chain {warps} warps": partial(chain, warps=warps) for warps in (1, 2, 4)}

    if report is None:
        for cut in tried:
            single(banks[0], *cut)
        for part in parts.values():
            part(banks[0])
        return
    found = {"prompt": round(timed([partial(prompt, bank) for bank in banks], 3), 3)}
    for name, part in parts.items() if tokens > 1 else ():
        found[name] = round(timed([partial(part, bank) for bank in banks], 3), 3)
    for cut in tried if tokens == 1 else ():
        calls = [partial(single, bank, *cut) for bank in banks]
        found["s{}x{}r{}".format(*cut)] = round(timed(calls, 3), 3)
    report.add(
        part="recurrence",
        state=str(state)[6:],
        rows=rows,
        tokens=tokens,
        floor_us=limits.floor(rows * cells * 2 * state.itemsize + 2 * total * width * (8 + 1)),
        all_us=found,
    )
