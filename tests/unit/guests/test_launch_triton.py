"""The short way to a compiled kernel: found again only for what would compile to the same."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from statevisor.guests.launch_triton import Launcher  # noqa: E402


class Compiled:
    """Records what it is launched with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments: self.calls.append((grid, arguments))


class Kernel:
    """Compiles anew at every call, as Triton would for arguments it has not seen."""

    arg_names = ("x", "rows", "WIDTH", "EPS")

    def __init__(self, interpreted: bool = False) -> None:
        self.fn = self
        self.interpreted = interpreted
        self.made: list[Compiled] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*arguments: Any, **named: Any) -> Compiled | None:
            self.made.append(Compiled())
            return None if self.interpreted else self.made[-1]

        return run


X = torch.zeros(64, dtype=torch.float16)
#: In another order than the kernel names them.
CONSTANTS = {"EPS": 1e-5, "WIDTH": 64}
OPTIONS = {"num_warps": 4}


def test_a_call_of_the_same_kinds_goes_to_what_was_compiled() -> None:
    kernel, launch = Kernel(), Launcher()
    launch(kernel, (3,), (X, 5), CONSTANTS, OPTIONS)
    other = torch.ones(64, dtype=torch.float16)
    launch(kernel, (7,), (other, 6), CONSTANTS, OPTIONS)
    assert len(kernel.made) == 1
    [(grid, arguments)] = kernel.made[0].calls
    assert grid == (7, 1, 1)
    assert arguments[0] is other
    assert arguments[1:] == (6, 64, 1e-5)


@pytest.mark.parametrize(
    ("arguments", "constants", "options"),
    [
        ((X.float(), 5), CONSTANTS, OPTIONS),
        ((X[1:], 5), CONSTANTS, OPTIONS),
        ((X, 5), {**CONSTANTS, "WIDTH": 128}, OPTIONS),
        ((X, 5), CONSTANTS, {"num_warps": 8}),
    ],
    ids=["dtype", "alignment", "constant", "option"],
)
def test_what_triton_specialises_on_is_compiled_anew(arguments, constants, options) -> None:
    kernel, launch = Kernel(), Launcher()
    launch(kernel, (1,), (X, 5), CONSTANTS, OPTIONS)
    launch(kernel, (1,), arguments, constants, options)
    assert len(kernel.made) == 2
    assert not kernel.made[0].calls


def test_what_is_interpreted_is_never_found() -> None:
    kernel, launch = Kernel(interpreted=True), Launcher()
    for _ in range(3):
        launch(kernel, (1,), (X, 5), CONSTANTS, OPTIONS)
    assert len(kernel.made) == 3
