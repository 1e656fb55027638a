"""Prompts as graphs against eager passes and single tokens; the fast mode beside the exact one."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from statevisor.guests.ops_fast import FastOps
from statevisor.guests.prompt_graphs import PromptGraphs

BF16 = torch.bfloat16
SLOTS = 20
CHUNKED = 64


@pytest.fixture
def guest(make_guest):
    return make_guest(BF16, "F16", SLOTS)


@pytest.fixture
def graphs(guest, device) -> PromptGraphs:
    graphs = PromptGraphs(
        partial(guest.model.forward, guest.bank), tokens=200, slots=SLOTS, device=device
    )
    graphs.capture()
    return graphs


def batches(seed: int, count: int) -> list[list[tuple[int, list[int]]]]:
    """Rows of 1 to 90 tokens, at least one of them longer than one."""
    chance, found = random.Random(seed), []
    for _ in range(count):
        slots = chance.sample(range(1, SLOTS + 1), chance.choice((1, 2, 3, 9, SLOTS)))
        most = 180 // len(slots)
        lengths = [chance.choice((1, 2, chance.randint(1, most))) for _ in slots]
        lengths[0] = max(2, lengths[0])
        found.append(
            [
                (slot, [chance.randrange(512) for _ in range(length)])
                for slot, length in zip(slots, lengths, strict=True)
            ]
        )
    return found


def test_graphs_give_the_bits_of_eager_passes(guest, graphs) -> None:
    assert not guest.bank.bytes.any(), "to record graphs writes no slot"
    fed, twin = batches(3, 40), guest.bank.bytes.clone()
    guest.bank.bytes[0].fill_(0xFF)
    for rows in fed:
        logits = guest.feed(rows, graphs).clone()
        after = guest.bank.bytes.clone()
        guest.bank.bytes.copy_(twin)
        assert torch.equal(guest.feed(rows), logits)
        assert torch.equal(guest.bank.bytes[1:], after[1:])
        assert (after[0] == 0xFF).all()
        twin = guest.bank.bytes.clone()
        guest.bank.bytes[0].fill_(0xFF)
    sizes = {graphs.size(guest.pack(rows)) for rows in fed}
    assert None not in sizes
    assert len(sizes) > 6


@pytest.mark.parametrize("state", ["F16", "F32"])
def test_a_graphed_prompt_gives_the_bits_of_single_tokens(make_guest, device, state) -> None:
    guest = make_guest(BF16, state, 3)
    graphs = PromptGraphs(
        partial(guest.model.forward, guest.bank), tokens=256, slots=3, device=device
    )
    graphs.capture()
    for length in (2, 3, 31, 200, 256):
        tokens = [7 * index % 512 for index in range(length)]
        guest.bank.bytes.zero_()
        logits = guest.feed([(2, tokens)], graphs).clone()
        for token in tokens:
            single = guest.feed([(1, [token])])
        assert torch.equal(single, logits), length
        assert torch.equal(guest.bank.bytes[1], guest.bank.bytes[2]), length


def test_padding_rows_that_ran_would_be_seen(guest, graphs) -> None:
    """The control: the same graph, whose last padding row is given the padding tokens."""
    guest.bank.bytes[0].fill_(0xFF)
    batch = guest.pack([(1, [5] * 20)])
    size = graphs.size(batch)
    assert size is not None
    assert size[0] > 20
    graphs(batch)
    assert (guest.bank.bytes[0] == 0xFF).all()
    graphs._rows.batch(size).starts[-1] = size[0]
    graphs._graphs[size][0].replay()
    assert not (guest.bank.bytes[0] == 0xFF).all()


def test_the_fast_mode_is_near_the_exact_one(make_guest, device, distance) -> None:
    pytest.importorskip("fla", reason="needs flash-linear-attention")
    exact = make_guest(BF16, "F32", 4)
    fast = make_guest(BF16, "F32", 4, ops=FastOps(device, BF16, CHUNKED))
    assert fast.model.ops.chunked == CHUNKED
    chance = random.Random(2)
    for lengths in ((1, 1, 1), (CHUNKED - 1, 2), (CHUNKED, 3), (2 * CHUNKED + 5, 1, 40)):
        rows = [
            (slot, [chance.randrange(512) for _ in range(length)])
            for slot, length in enumerate(lengths, 1)
        ]
        assert distance(fast.feed(rows), exact.feed(rows)) < 2e-2, lengths
        for name in ("wkv", "shift_att", "shift_ffn"):
            assert distance(fast.bank.views[name], exact.bank.views[name]) < 2e-2, (name, lengths)
        fast.bank.bytes.copy_(exact.bank.bytes)


def test_chunks_are_no_exact_recurrence(make_guest, device) -> None:
    """Why the mode is a build of its own: fed in two pieces a prompt gives other bits."""
    pytest.importorskip("fla", reason="needs flash-linear-attention")
    found = {}
    for name, ops in (("exact", None), ("fast", FastOps(device, BF16, CHUNKED))):
        guest = make_guest(BF16, "F32", 4, ops=ops)
        tokens = [7 * index % 512 for index in range(2 * CHUNKED)]
        guest.feed([(1, tokens)])
        guest.feed([(2, tokens[:50])])
        guest.feed([(2, tokens[50:])])
        found[name] = torch.equal(guest.bank.bytes[1], guest.bank.bytes[2])
    assert found == {"exact": True, "fast": False}
