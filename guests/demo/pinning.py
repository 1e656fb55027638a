"""One configuration for every autotuned Triton kernel, so that a short run need not search.

The search over fla's backward kernels takes longer than the whole training; with one
configuration Triton skips it. Call `pin_autotuning` before fla is imported.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

WARPS, STAGES, TILE = 4, 2, 64


def pin_autotuning() -> None:
    """Let every autotuner made from now on keep one configuration.

    fla puts its own function over `triton.autotune`, so the class under both is changed. Modifies
    triton and one environment variable of fla (no optional backends).
    """
    from triton.runtime.autotuner import Autotuner

    os.environ["FLA_DISABLE_BACKEND_DISPATCH"] = "1"
    begin = Autotuner.__init__

    def begin_pinned(
        self: Any, fn: Any, names: Any, configs: Any, *args: Any, **kwargs: Any
    ) -> None:
        begin(self, fn, names, [nearest(configs)] if configs else configs, *args, **kwargs)

    Autotuner.__init__ = begin_pinned


def nearest(configs: Sequence[Any]) -> Any:
    """The configuration nearest to 4 warps, 2 stages and tiles of 64; of equals the first."""
    return min(
        configs,
        key=lambda config: (
            abs(config.num_warps - WARPS),
            abs(config.num_stages - STAGES),
            sum(abs(config.kwargs[name] - TILE) for name in ("BK", "BV") if name in config.kwargs),
        ),
    )
