"""Dependent launch: a kernel's programs start while the kernel before it still runs.

With it a launch costs no gap, and a product may ask for its weights, which nobody writes, while its
inputs are still being made. Order is kept as without: a kernel reads and writes nothing before
`await_previous` returns, and that is when the kernel before it, and so every earlier one, has
finished and its writes are seen. What comes before is prefetches into the second-level cache,
where all writes meet, so they cannot make a value stale. It changes no arithmetic.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def await_previous(DEPENDENT: tl.constexpr):
    """First statement of a kernel; DEPENDENT: whether it is launched so."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def prefetch(pointers):
    """Ask for the cache lines at these addresses; reads nothing."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [pointers.to(tl.uint64)],
        dtype=tl.uint32,
        is_pure=False,
        pack=1,
    )


def can_depend(device: torch.device) -> bool:
    """Whether the device has dependent launch."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
