"""Runs the kernels on the CPU: each file of `interpreted/` in a process of Triton's interpreter.

Triton decides at import whether kernels are compiled or interpreted, so the files need a process
of their own and do not match pytest's file pattern.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted(Path(__file__).with_name("interpreted").glob("kernels_*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_kernels_pass_in_the_interpreter(file: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    # Kernels are fed NaNs on purpose, of which numpy would warn.
    command += ["-W", "ignore::RuntimeWarning"]
    ran = subprocess.run(
        command,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed, ran.stdout
    assert int(passed[1]) > 0


def test_every_kernel_file_has_its_tests() -> None:
    assert {file.stem for file in FILES} == {
        "kernels_wkv7",
        "kernels_shift",
        "kernels_linear",
        "kernels_guest",
        "kernels_sampling",
        "kernels_steps",
        "kernels_fused",
    }
