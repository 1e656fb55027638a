"""Guests: model families able to run in slots. Importing this package imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from statevisor.hypervisor.errors import InvalidRequest

if TYPE_CHECKING:
    from statevisor.hypervisor.ports import Guest

#: Model families: the module that is imported when one is used, and its model class.
FAMILIES = {"rwkv7": ("statevisor.guests.families.rwkv7", "Rwkv7Model")}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestConfig:
    """Which model, where and how large."""

    model: str = "demo"  #: a folder or file with a checkpoint, or "demo"
    name: str | None = None  #: None: the folder's or file's own
    slots: int = 64
    state_dtype: str = "F32"  #: of the recurrent matrices; F16 halves a state and rounds each token
    device: str = "auto"  #: "cpu", "cuda", or "auto": cuda if there is one
    threads: int | None = None  #: of torch on the CPU, part of the build; None: half of the cores
    step_tokens: int = 512  #: most tokens of one step over all rows
    mode: str = "exact"  #: or "fast": the library's products, and no promise about bits

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu", "cuda"):
            raise InvalidRequest(f"device {self.device!r} is none of auto, cpu, cuda")
        if self.state_dtype not in ("F32", "F16"):
            raise InvalidRequest(f"state_dtype {self.state_dtype!r} is none of F32, F16")
        if self.mode not in ("exact", "fast"):
            raise InvalidRequest(f"mode {self.mode!r} is none of exact, fast")
        for name in ("slots", "step_tokens", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequest(f"{name} must be at least 1")


def build_guest(config: GuestConfig, *, verify: bool = True) -> Guest:
    """Load a model and make it ready to step.

    verify: check that no row's bits depend on other rows (about a second for a small model); in the
    fast mode they may.
    Raises: CheckpointInvalid, ModelNotFound, CapabilityMissing (no such device, or one on which
    rows are not independent).
    """
    # Here and not above: the parts of the server that know no model must not wait for torch.
    from statevisor.guests.build import build

    return build(config, verify=verify)
