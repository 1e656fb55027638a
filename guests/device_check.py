"""What torch says of this machine; loading this file loads torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """One device that a guest could run on."""

    name: str
    total_bytes: int | None  #: None: the host's memory
    fault: str | None  #: why a small product on it failed or was wrong


def devices() -> tuple[DeviceFacts, ...]:
    """The CPU and every CUDA device, each after a small product whose result is known."""
    found = [
        DeviceFacts(name=f"cpu, torch {torch.__version__}", total_bytes=None, fault=_try("cpu"))
    ]
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        found.append(
            DeviceFacts(
                name=facts.name, total_bytes=facts.total_memory, fault=_try(f"cuda:{index}")
            )
        )
    return tuple(found)


def _try(device: str) -> str | None:
    try:
        ones = torch.ones(64, 64, device=device)
        total = float((ones @ ones).sum())
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None if total == 64.0**3 else f"64 * 64 * 64 is {total} there"
