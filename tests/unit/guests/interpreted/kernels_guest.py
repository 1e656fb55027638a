"""The whole guest on the Triton operators, interpreted: equations, splits, batches and slots."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from statevisor.guests.bank import Bank
from statevisor.guests.families import rwkv7
from statevisor.guests.mixers import wkv7
from statevisor.guests.ops_triton import TritonOps

CONFIG = rwkv7.Rwkv7Config(
    layers=2, width=64, heads=1, ffn=128, rank_w=16, rank_a=16, rank_v=8, rank_g=24, vocab=80
)
SLOTS = 5


class Guest:
    def __init__(self, act: torch.dtype, state: str) -> None:
        self.tensors = rwkv7.random_weights(CONFIG, seed=5)
        self.weights = rwkv7.Rwkv7Weights.from_tensors(CONFIG, self.tensors, dtype=act)
        self.ops = TritonOps(torch.device("cpu"), act)
        self.bank = Bank(rwkv7.layout(CONFIG, state, act), SLOTS)

    def feed(self, make_batch, rows: Sequence[tuple[int, Sequence[int]]]) -> torch.Tensor:
        """rows: (slot, tokens); returns logits [R, V]."""
        batch = make_batch([len(tokens) for _, tokens in rows], [slot for slot, _ in rows])
        batch.tokens.copy_(torch.tensor([token for _, tokens in rows for token in tokens]))
        hidden = rwkv7.forward(self.ops, self.weights, self.bank, batch)
        return rwkv7.logits(self.ops, self.weights, hidden)


@pytest.fixture(params=[(torch.float32, "F32"), (torch.float16, "F16")], ids=["f32", "f16"])
def guest(request) -> Guest:
    return Guest(*request.param)


def test_logits_and_state_match_the_equations(guest, make_batch, distance):
    tokens = (3, 70, 12)
    doubles = {name: tensor.double() for name, tensor in guest.tensors.items()}
    state = wkv7.empty_state(CONFIG.layers, CONFIG.width, torch.float64)
    for token in tokens:
        wanted = wkv7.step(doubles, state, token)
    got = guest.feed(make_batch, [(2, tokens)])[0]
    near = 1e-5 if guest.ops.act == torch.float32 else 1e-2
    assert distance(got, wanted) < near
    assert distance(guest.bank.views["wkv"][2], state["wkv"]) < near


def test_batch_split_slot_and_neighbours_change_no_bit(guest, make_batch):
    tokens = (3, 70, 12, 41)
    wanted = guest.feed(make_batch, [(1, tokens)])
    guest.feed(make_batch, [(3, tokens[:1])])
    guest.feed(make_batch, [(2, (9,)), (3, tokens[1:3]), (0, (0,))])
    got = guest.feed(make_batch, [(0, (0,)), (4, (2,)), (3, tokens[3:])])[2:]
    assert torch.equal(got, wanted)
    assert torch.equal(guest.bank.bytes[3], guest.bank.bytes[1])
    assert not guest.bank.bytes[5].any()


def test_a_state_that_was_fed_otherwise_is_told_apart(guest, make_batch):
    one = guest.feed(make_batch, [(1, (3, 70))])
    other = guest.feed(make_batch, [(2, (70, 3))])
    assert not torch.equal(one, other)
    assert not torch.equal(guest.bank.bytes[1], guest.bank.bytes[2])


def test_the_fingerprint_names_what_fixes_the_bits():
    base = TritonOps(torch.device("cpu"), torch.float32, environ={})
    facts = base.fingerprint()
    assert {"torch", "triton", "kernels", "linear", "wkv", "act"} <= facts.keys()
    steered = TritonOps(
        torch.device("cpu"),
        torch.float16,
        environ={"CUBLASLT_WORKSPACE_SIZE": "1", "TRITON_CACHE_DIR": "x", "HOME": "y"},
    ).fingerprint()
    assert steered["act"] != facts["act"]
    assert steered.keys() - facts.keys() == {"env CUBLASLT_WORKSPACE_SIZE"}
