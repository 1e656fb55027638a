"""The whole guest on the device: no bit depends on batch, bucket, slot, neighbours, split or graph.

The oracle of each witness is the same actor alone: the eager step, one token a call, in a bank of
its own. Everything else of a step is noise, also neighbours whose states are not finite.
"""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from statevisor.guests.graphs import GraphedForward
from statevisor.guests.mixers import wkv7

COMBINATIONS = list(product((torch.bfloat16, torch.float32), ("F32", "F16")))
IDS = [f"{str(act)[6:]}-state-{state}" for act, state in COMBINATIONS]
SLOTS = 256


def graphed(guest) -> GraphedForward:
    forward = GraphedForward(guest.forward, slots=guest.bank.slots, device=guest.model.ops.device)
    forward.capture()
    return forward


class Witness:
    """An actor with fixed tokens, and what it gives alone."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.logits: list[torch.Tensor] = []
        self.states: list[torch.Tensor] = []  #: after each number of tokens
        self.absorbed = 0
        self.slot = 0

    def live_alone(self, guest) -> None:
        guest.bank.bytes.zero_()
        self.states.append(guest.bank.bytes[1].clone())
        for token in self.tokens:
            self.logits.append(guest.feed([(1, [token])])[0])
            self.states.append(guest.bank.bytes[1].clone())


class World:
    """Random steps over a full bank, each compared with what the witnesses gave alone."""

    def __init__(self, guest, forward, witnesses: list[Witness], seed: int) -> None:
        self.guest, self.forward, self.witnesses = guest, forward, witnesses
        self.random = random.Random(seed)
        self.seen: set[str] = set()
        slots = self.random.sample(range(1, guest.bank.slots + 1), len(witnesses))
        for witness, slot in zip(witnesses, slots, strict=True):
            witness.slot, witness.absorbed = slot, 0
            guest.bank.clear(slot)

    def free(self) -> list[int]:
        taken = {witness.slot for witness in self.witnesses}
        return [slot for slot in range(1, self.guest.bank.slots + 1) if slot not in taken]

    def step(self, most: int) -> None:
        vocab, chance = self.guest.model.vocab, self.random
        single = chance.random() < 0.85
        rows, fed = [], []
        for witness in self.witnesses:
            left = len(witness.tokens) - witness.absorbed
            if left and chance.random() < 0.5:
                length = 1 if single else chance.randint(1, min(left, 12))
                tokens = witness.tokens[witness.absorbed : witness.absorbed + length]
                rows.append((witness.slot, tokens))
                fed.append(witness)
                witness.absorbed += length
        others = self.free()
        for slot in chance.sample(others, min(len(others), chance.randint(0, most))):
            length = 1 if single else chance.randint(1, 4)
            rows.append((slot, [chance.randrange(vocab) for _ in range(length)]))
        if not rows:
            return
        order = chance.sample(range(len(rows)), len(rows))
        rows = [rows[at] for at in order]
        eager = chance.random() < 0.2
        self.seen.add("ragged" if not single else "eager" if eager else "graph")
        logits = self.guest.feed(rows, self.forward.eager if eager else self.forward)
        for index, witness in enumerate(fed):
            got = logits[order.index(index)]
            assert torch.equal(got, witness.logits[witness.absorbed - 1])

    def disturb(self) -> None:
        """Move a witness by pinned memory or by a device copy, or poison a neighbour."""
        chance, bank = self.random, self.guest.bank
        witness, target = chance.choice(self.witnesses), chance.choice(self.free())
        match chance.choice(("tier", "copy", "poison", "stay")):
            case "tier":
                frame = bank.frames(1)
                torch.cuda.synchronize()  # no step, and no poison, is on its way
                bank.save(witness.slot, frame)
                bank.bytes[witness.slot].fill_(0xFF)
                bank.load(target, frame)
                witness.slot = target
            case "copy":
                # The parent goes on as a neighbour, the copy is the witness.
                bank.copy(witness.slot, [target])
                witness.slot = target
            case "poison":
                bank.bytes[target].fill_(0xFF)  # NaN in every float dtype
            case "stay":
                self.check(witness)

    def check(self, witness: Witness) -> None:
        assert torch.equal(self.guest.bank.bytes[witness.slot], witness.states[witness.absorbed])


def live(guest, forward, alone, *, seed: int, witnesses: int, tokens: int, steps: int) -> World:
    """Run a world of so many steps in phases from one row to a full bank."""
    generator = random.Random(seed)
    cast = [
        Witness([generator.randrange(guest.model.vocab) for _ in range(tokens)])
        for _ in range(witnesses)
    ]
    for witness in cast:
        witness.live_alone(alone)
    world = World(guest, forward, cast, seed)
    for step in range(steps):
        if all(witness.absorbed == tokens for witness in cast):
            for witness in cast:
                world.check(witness)
            world = World(guest, forward, cast, seed + step)
        world.step(most=(0, 3, 20, 70, SLOTS)[step * 5 // steps])
        if step % 3 == 0:
            world.disturb()
    for witness in cast:
        world.check(witness)
    return world


@pytest.mark.parametrize(("act", "state"), COMBINATIONS, ids=IDS)
def test_nothing_beside_an_actor_changes_a_bit_of_it(make_guest, act, state):
    guest, alone = make_guest(act, state, SLOTS), make_guest(act, state, 2)
    forward = graphed(guest)
    assert len(forward.buckets) == 13
    long = (act, state) == COMBINATIONS[0]
    sizes = (
        {"witnesses": 10, "tokens": 160, "steps": 2000}
        if long
        else {"witnesses": 5, "tokens": 60, "steps": 300}
    )
    world = live(guest, forward, alone, seed=1, **sizes)
    assert world.seen == {"ragged", "eager", "graph"}


@pytest.mark.parametrize(("act", "state"), COMBINATIONS, ids=IDS)
def test_every_bucket_gives_the_bits_of_the_eager_step(make_guest, act, state):
    guest = make_guest(act, state, SLOTS)
    forward = graphed(guest)
    chance = random.Random(3)
    for rows in sorted({*forward.buckets, *(size - 1 for size in forward.buckets if size > 2), 5}):
        plan = [(slot, [chance.randrange(512)]) for slot in chance.sample(range(1, 257), rows)]
        before = guest.bank.bytes.clone()
        eager = guest.feed(plan, forward.eager)
        after = guest.bank.bytes.clone()
        guest.bank.bytes.copy_(before)
        assert torch.equal(guest.feed(plan, forward), eager)
        assert torch.equal(guest.bank.bytes[1:], after[1:])


def test_logits_and_state_match_the_equations(make_guest, distance):
    tokens = [3, 70, 500, 12, 12, 9, 140, 77]
    for act, state in COMBINATIONS:
        guest = make_guest(act, state)
        doubles = {name: tensor.to("cuda", torch.float64) for name, tensor in guest.tensors.items()}
        oracle = {
            name: tensor.to("cuda")
            for name, tensor in wkv7.empty_state(3, 256, torch.float64).items()
        }
        with torch.device("cuda"):
            for token in tokens:
                wanted = wkv7.step(doubles, oracle, token)
        got = guest.feed([(4, tokens)])[0]
        near = {torch.float32: 1e-5, torch.bfloat16: 5e-2}[act] + (1e-3 if state == "F16" else 0)
        assert distance(got, wanted) < near
        assert distance(guest.bank.views["wkv"][4], oracle["wkv"]) < near


def test_a_long_prompt_gives_the_bits_of_single_tokens(make_guest):
    for act, state in COMBINATIONS:
        guest = make_guest(act, state, 4)
        chance = random.Random(8)
        tokens = [chance.randrange(512) for _ in range(700)]
        whole = guest.feed([(1, tokens)])
        guest.feed([(2, tokens[:1]), (3, tokens[:350])])
        guest.feed([(3, tokens[350:699]), (2, tokens[1:513])])
        parts = guest.feed([(2, tokens[513:]), (3, tokens[699:])])
        for token in tokens:
            single = guest.feed([(4, [token])])
        assert torch.equal(parts, whole.expand(2, -1))
        assert torch.equal(single, whole)
        assert all(torch.equal(guest.bank.bytes[slot], guest.bank.bytes[1]) for slot in (2, 3, 4))


def test_forks_are_equal_then_go_their_own_ways(make_guest):
    guest = make_guest(slots=40)
    forward = graphed(guest)
    guest.feed([(1, [5, 6, 7])])
    guest.bank.copy(1, list(range(2, 34)))
    together = guest.feed([(slot, [9]) for slot in range(1, 34)], forward)
    assert torch.equal(together, together[:1].expand(33, -1))
    assert torch.equal(guest.bank.bytes[2:34], guest.bank.bytes[1:2].expand(32, -1))
    guest.feed([(slot, [slot]) for slot in range(1, 34)], forward)
    assert len({bytes(row) for row in guest.bank.bytes[1:34].cpu().numpy()}) == 33
    assert not guest.bank.bytes[34:].any()
