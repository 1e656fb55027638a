"""What must be caught: each guard taken out, and the comparison that then fails."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

import triton
import triton.language as tl

from statevisor.guests.graphs import DecodeRows, GraphedForward
from statevisor.guests.sampling import sample
from statevisor.hypervisor.errors import CapabilityMissing
from statevisor.hypervisor.sampling import Draw, SamplerSettings

#: Cycles that a spin kernel holds its stream: a tenth of a second.
SPIN = 200_000_000


class LibraryLinear:
    """The library's product as torch comes: it picks kernels by the number of rows."""

    kind = "library"

    def __call__(self, x, weight, activation=None):
        assert activation is None
        return torch.mm(x, weight.T)

    def group(self, products):
        return [self(*product) for product in products]

    def describe(self) -> str:
        return "library"


def test_the_library_product_is_told_from_the_invariant_one(make_guest, draw):
    invariant = make_guest().model.ops
    x, weight = draw(256, 8192, dtype=torch.bfloat16), draw(2048, 8192, dtype=torch.bfloat16)

    def changes(linear) -> bool:
        return not torch.equal(linear(x, weight)[:1], linear(x[:1].contiguous(), weight))

    assert changes(LibraryLinear())
    assert not changes(invariant.linear)


def test_the_check_at_start_refuses_the_library_product(make_guest, draw):
    weights = [draw(2048, 8192, dtype=torch.bfloat16), draw(2048, 96, dtype=torch.bfloat16)]
    make_guest().model.ops.admit(weights)
    with pytest.raises(CapabilityMissing, match=r"\[2048, 8192\]"):
        make_guest(linear=LibraryLinear()).model.ops.admit(weights)


def draws(count: int, temperature: float = 1.0) -> list[Draw]:
    settings = SamplerSettings(temperature=temperature)
    return [Draw(seed=100 + index, position=7, settings=settings) for index in range(count)]


def sampled(sampler, logits: torch.Tensor, order: list[int]) -> list[int]:
    """Tokens of the rows in the order of `logits`, sampled in another order."""
    asked = draws(len(order))
    results = sampler(logits[order].contiguous(), [asked[index] for index in order])
    found = dict(zip(order, (result.token for result in results), strict=True))
    return [found[index] for index in range(len(order))]


def row_dependent(logits, asked):
    """A sampler with the usual fault: noise is drawn for the whole batch at once."""
    generator = torch.Generator(logits.device).manual_seed(asked[0].seed)
    noise = torch.rand(logits.shape, generator=generator, device=logits.device)
    tokens = (logits - (-noise.log()).log()).argmax(1).tolist()
    return [type("Result", (), {"token": token})() for token in tokens]


def test_a_sampler_that_looks_at_rows_is_told_apart(draw):
    logits = draw(64, 512)
    straight, turned = list(range(64)), list(reversed(range(64)))
    assert sampled(sample, logits, straight) == sampled(sample, logits, turned)
    assert sampled(sample, logits, straight)[:1] == sampled(sample, logits[:1], [0])
    assert sampled(row_dependent, logits, straight) != sampled(row_dependent, logits, turned)


@pytest.mark.parametrize("waits", [True, False])
def test_a_copy_that_does_not_wait_for_the_step_is_told_apart(make_guest, waits):
    """A slot is copied out on another stream while its step is still held back by a spin."""
    guest = make_guest(slots=2)
    guest.feed([(1, [1, 2, 3]), (2, [1])])
    guest.feed([(2, [1])])
    before = guest.bank.bytes[1].clone()
    side, done = torch.cuda.Stream(), torch.cuda.Event()
    out = torch.empty(guest.model.layout.row_bytes, dtype=torch.uint8, pin_memory=True)
    # Packed before the spin: taking page-locked memory may wait for the device.
    batch = guest.pack([(1, [4])])
    torch.cuda.synchronize()
    torch.cuda._sleep(SPIN)
    guest.forward(batch)
    done.record()
    with torch.cuda.stream(side):
        if waits:
            side.wait_event(done)
        out.copy_(guest.bank.bytes[1], non_blocking=True)
    side.synchronize()
    torch.cuda.synchronize()
    after = guest.bank.bytes[1].cpu()
    assert not torch.equal(after, before.cpu())
    assert torch.equal(out, after) is waits


class StaleRows(DecodeRows):
    """Static inputs without the guard: rows past the batch keep the slots of an earlier one."""

    def fill(self, batch, size):
        rows = batch.tokens.shape[0]
        self._fed[0, :rows].copy_(batch.tokens)
        self._fed[1, :rows].copy_(batch.slots)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_stale_padding_row_is_told_apart(make_guest, device, guarded):
    guest = make_guest(slots=4)
    forward = GraphedForward(guest.forward, slots=4, device=device)
    if not guarded:
        forward._rows = StaleRows(forward.buckets[-1], device)
    forward.capture()
    guest.feed([(slot, [slot]) for slot in (1, 2, 3, 4)], forward)
    resting = guest.bank.bytes[4].clone()
    guest.feed([(slot, [9]) for slot in (1, 2, 3)], forward)
    assert torch.equal(guest.bank.bytes[4], resting) is guarded


@triton.jit
def add_one(bank, slots, STRIDE: tl.constexpr, WIDE: tl.constexpr):
    slot = tl.load(slots)
    if not WIDE:
        slot = slot.to(tl.int32)
    at = bank + slot * STRIDE + tl.arange(0, 64)
    tl.store(at, tl.load(at) + 1)


@pytest.mark.parametrize("wide", [True, False])
def test_a_slot_past_2_to_31_elements_needs_64_bits(device, wide):
    """The pointer stands in the middle, so that a wrapped offset still hits memory of ours."""
    half = 2**31
    memory = torch.zeros(2 * half + 64, dtype=torch.float16, device=device)
    stride = 2**20
    slots = torch.tensor([half // stride], device=device)
    add_one[(1,)](memory[half:], slots, STRIDE=stride, WIDE=wide)
    assert memory[2 * half :].all().item() is wide
    assert memory[:64].all().item() is not wide


def test_the_recurrence_reaches_slots_past_2_to_31_elements(make_guest, device, draw):
    """A bank view whose row stride is inflated, against the dense bank."""
    guest, heads, size = make_guest(), 4, 64
    cells = heads * size * size
    stride, far = 2**30, 3
    memory = torch.zeros(far * stride + cells, dtype=torch.float16, device=device)
    sparse = torch.as_strided(memory, (far + 1, heads, size, size), (stride, size * size, size, 1))
    dense = torch.zeros(far + 1, heads, size, size, dtype=torch.float16, device=device)
    start = draw(heads, size, size, dtype=torch.float16)
    sparse[far], dense[far] = start, start
    parts = [draw(2, heads, size, dtype=torch.bfloat16) for _ in range(6)]
    parts[1] = parts[1].float().sigmoid()
    batch = guest.pack([(far, [0, 0])])
    ops = guest.model.ops
    assert torch.equal(ops.wkv7(*parts, sparse, batch), ops.wkv7(*parts, dense, batch))
    assert torch.equal(sparse[far], dense[far])
    assert not torch.equal(sparse[far], start)
    assert not sparse[1:far].any()
