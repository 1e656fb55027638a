"""How kernels are launched: dependent on the one before, and by a short way once compiled.

Dependent launch: a kernel's programs start while the kernel before it still runs, so that a launch
costs less of a gap. Order is kept as without: before `await_previous` returns a kernel writes
nothing and reads nothing that an earlier kernel of its pass writes; it returns when the kernel
before it, and so every earlier one, has finished and its writes are seen. The first kernel of a
pass is not launched so, and no kernel of a pass starts before it: what was written before the pass
and is not in it may be read early by all of them. That are vectors, the first of a product's
weights into the second-level cache, the slots, and the state and the shift of the kernel's own
layer. It changes no arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

#: When the next kernel's programs may start: with this kernel's own, or when this kernel is about
#: to store.
EARLY, LATE = tl.constexpr(1), tl.constexpr(2)
#: Rows up to which a pass is launched the first way: with more, programs that wait take the place
#: of programs that work.
DEPENDENT_ROWS = 192


@triton.jit
def await_previous(DEPENDENT: tl.constexpr):
    """Comes before all that earlier kernels write; DEPENDENT: EARLY, LATE or not at all."""
    if DEPENDENT:
        if DEPENDENT != LATE:
            gdc_launch_dependents()
        gdc_wait()


@triton.jit
def allow_next(DEPENDENT: tl.constexpr):
    """Comes before the last stores of a kernel."""
    if DEPENDENT == LATE:
        gdc_launch_dependents()


def dependence(able: bool, rows: int, single: bool) -> int:
    """How a kernel of a pass over so many rows is launched, where the device is able to.

    single: all rows have one token.
    """
    if not able:
        return 0
    if rows <= DEPENDENT_ROWS:
        return EARLY.value
    return LATE.value if single else 0


def can_depend(device: torch.device) -> bool:
    """Whether the device has dependent launch."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


class Launcher:
    """Launches kernels; what Triton compiled for a call is found again by a shorter way.

    Triton's own way from a call to its compiled kernel takes longer than the kernel, so that a pass
    that is not a graph waits for it. The key here holds all that Triton's holds: constants, options
    and, of every tensor, dtype and alignment. Kernels must not specialise on their numbers.
    """

    def __init__(self) -> None:
        self._found: dict[Any, tuple[Any, tuple[Any, ...]]] = {}

    def __call__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        arguments: tuple[Any, ...],
        constants: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        """arguments: the kernel's first; constants: all others by name; options: the compiler's."""
        kinds = tuple(
            (argument.dtype, argument.data_ptr() % 16 == 0)
            if isinstance(argument, torch.Tensor)
            else type(argument)
            for argument in arguments
        )
        key = (kernel.fn, kinds, tuple(constants.items()), tuple(options.items()))
        found = self._found.get(key)
        if found is None:
            compiled = kernel[grid](*arguments, **constants, **options)
            names = kernel.arg_names[len(arguments) :]
            if compiled is not None:  # the interpreter compiles nothing
                self._found[key] = compiled, tuple(constants[name] for name in names)
            return
        compiled, values = found
        compiled[(*grid, 1, 1)[:3]](*arguments, *values)
