"""Products of one row with a weight of which only the channels that matter are read.

After relu^2 half of the activations are exactly zero, of trained models more. Such a channel adds
zeros to every sum whatever its weights are, as long as they are finite: here they are not read, and
stand as zeros where the tensor core meets them in its fixed order. So the bits are those of
`stacks_triton`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from statevisor.guests.launch_triton import await_previous


@triton.jit
def sparse_kernel(
    x,
    values,
    channels,
    out,
    WIDTH: tl.constexpr,
    INNER: tl.constexpr,
    SEGMENTS: tl.constexpr,
    LENGTH: tl.constexpr,
    TURNS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STEP: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One segment of the sums of BLOCK_O outputs.

    x [1, INNER] in blocks of the copy engine; values: the same as a pointer; channels
    [INNER, WIDTH]: the weight with a channel's numbers side by side. out: planes
    [SEGMENTS, 1, WIDTH]. LENGTH: channels of a segment, whole STEPs; TURNS: at least as many as
    those, a power of two, at most 32.
    """
    pid = tl.program_id(0)
    segment = pid % SEGMENTS
    begin = segment * LENGTH
    at_o = pid // SEGMENTS * BLOCK_O + tl.arange(0, BLOCK_O)
    at_k = tl.arange(0, STEP)
    turns = tl.arange(0, TURNS)[:, None]
    every = turns * STEP + at_k[None, :]
    inside = (every < LENGTH) & (begin + every < INNER)
    line = channels + (begin + at_k).to(tl.int64)[:, None] * WIDTH + at_o[None, :]
    real = (at_o < WIDTH)[None, :]
    await_previous(DEPENDENT)
    live = tl.load(values + begin + every, mask=inside, other=0.0) != 0.0
    # One bit a turn: a load that waits for a load of its own turn would not be under way early.
    bits = tl.sum(live.to(tl.int32) << turns, axis=0)[:, None]
    total = tl.zeros((BLOCK_O, BLOCK_N), tl.float32)
    for turn in range(0, tl.cdiv(tl.minimum(LENGTH, INNER - begin), STEP)):
        kept = ((bits >> turn) & 1) != 0
        far = (tl.zeros((), tl.int64) + turn) * (STEP * WIDTH)
        a = tl.load(line + far, mask=kept & real, other=0.0)
        b = x.load([0, begin + turn * STEP])
        total = tl.dot(a.T, b.T, total)
    at_n = tl.arange(0, BLOCK_N)
    here = segment * WIDTH + at_o[:, None] + at_n[None, :] * 0
    tl.store(out + here, total, mask=(at_o < WIDTH)[:, None] & (at_n == 0)[None, :])
