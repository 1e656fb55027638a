"""Sizes of published RWKV-7 models, and guests of those sizes with random weights, to measure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from statevisor.hypervisor.errors import InvalidRequest
from statevisor.hypervisor.ports import Guest

_WORLD = {"vocab": 65536, "rank_w": 96, "rank_a": 96, "rank_v": 64, "rank_g": 256}

#: Fields of `Rwkv7Config` by name. `demo` is the guest of this package, at any vocabulary of bytes.
GEOMETRIES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "demo": {
            **{"layers": 8, "width": 256, "heads": 4, "ffn": 1024, "vocab": 272},
            **{"rank_w": 32, "rank_a": 32, "rank_v": 32, "rank_g": 64},
        },
        "191m": {
            **_WORLD,
            **{"layers": 12, "width": 768, "heads": 12, "ffn": 3072},
            **{"rank_w": 64, "rank_a": 64, "rank_v": 32, "rank_g": 128},
        },
        "1.5b": {**_WORLD, **{"layers": 24, "width": 2048, "heads": 32, "ffn": 8192}},
        "2.9b": {
            **_WORLD,
            **{"layers": 32, "width": 2560, "heads": 40, "ffn": 10240, "rank_g": 320},
        },
        "7.2b": {
            **_WORLD,
            **{"layers": 32, "width": 4096, "heads": 64, "ffn": 16384},
            **{"rank_w": 128, "rank_a": 128, "rank_v": 96, "rank_g": 480},
        },
    }
)


def random_guest(
    geometry: str,
    *,
    slots: int,
    state_dtype: str,
    device: str,
    threads: int | None = None,
    mode: str = "exact",
    step_tokens: int = 512,
) -> Guest:
    """A guest of that size on the named device ("auto", "cpu", "cuda"), ready to step.

    step_tokens: most of one step; as many as there are slots at least.
    Raises: InvalidRequest (there is no such geometry), CapabilityMissing.
    """
    if geometry not in GEOMETRIES:
        raise InvalidRequest(f"there is no geometry {geometry!r}: {', '.join(GEOMETRIES)}")
    # Here and not above: whoever only names a geometry must not wait for torch.
    from statevisor.guests.build import build_random

    sizes: Any = GEOMETRIES[geometry]
    return build_random(
        geometry,
        sizes,
        slots=slots,
        state_dtype=state_dtype,
        device=device,
        threads=threads,
        mode=mode,
        step_tokens=step_tokens,
    )
