"""A cold process with an empty kernel cache gives the digests of this one."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

HERE = Path(__file__)

#: Runs this file's `story` in a process that has compiled nothing yet.
PROGRAM = """
import importlib.util, sys
import torch
def load(name):
    spec = importlib.util.spec_from_file_location(name, f"{sys.argv[1]}/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
conftest, test = load("conftest"), load("test_restart")
from statevisor.guests.ops_triton import TritonOps
with torch.inference_mode():
    guest = conftest.Guest(TritonOps(torch.device("cuda", 0), torch.bfloat16), "F16", 20)
    print(test.story(guest), test.build(guest))
"""


def story(guest) -> str:
    """Digest of logits and states after prompts, graphed and eager steps and a copy."""
    from statevisor.guests.graphs import GraphedForward

    forward = GraphedForward(guest.forward, slots=20, device=guest.model.ops.device)
    forward.capture()
    hasher = hashlib.sha256()
    plans = [[(slot, range(slot, 3 * slot)) for slot in range(1, 15)]]
    plans += [[(slot, [slot + turn]) for slot in range(1, 2 + 3 * turn)] for turn in range(6)]
    for plan in plans:
        hasher.update(guest.feed(plan, forward).cpu().numpy().tobytes())
    guest.bank.copy(3, [19, 20])
    hasher.update(guest.feed([(19, [1]), (20, [1])], forward.eager).cpu().numpy().tobytes())
    hasher.update(guest.bank.bytes[1:].cpu().numpy().tobytes())
    return hasher.hexdigest()


def build(guest) -> str:
    """Digest of what the operators say fixes their bits."""
    facts = sorted(guest.model.ops.fingerprint().items())
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def test_a_cold_process_gives_the_same_bits(make_guest, tmp_path):
    guest = make_guest(torch.bfloat16, "F16", 20)
    wanted = story(guest)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(HERE.parent)],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [wanted, build(guest)]
    assert any(tmp_path.iterdir()), "the process did not compile into its own cache"
