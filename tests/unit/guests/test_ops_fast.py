"""What the fast mode hands to the chunked rule, by the rule's own definition."""

from __future__ import annotations

import itertools

import pytest
import torch

from statevisor.guests.batch import pack
from statevisor.guests.ops_cpu import CpuOps
from statevisor.guests.ops_fast import LIBRARY_DEEP, LIBRARY_WIDE, by_library, chunked
from statevisor.guests.stacks_triton import Region, Stack
from statevisor.hypervisor.plan import Row

HEADS, SIZE = 2, 64


@pytest.mark.parametrize(
    ("features", "inner", "activation", "from_rows"),
    [
        (65536, 2048, None, LIBRARY_WIDE),
        (2048, 2048, None, LIBRARY_WIDE),
        (2048, 8192, None, LIBRARY_DEEP),
        (8192, 2048, "relu2", None),
    ],
)
def test_the_library_takes_products_of_many_rows(features, inner, activation, from_rows) -> None:
    region = Region(begin=0, width=features, inner=inner, activation=activation)
    stack = Stack(torch.empty(features, inner, device="meta"), [region])
    taken = [rows for rows in (1, 64, 128, 256, 512, 1024, 2048) if by_library(stack, rows)]
    assert min(taken, default=None) == from_rows


def test_a_launch_of_several_products_is_not_the_library() -> None:
    regions = [Region(begin=0, width=64, inner=64), Region(begin=64, width=64, inner=64)]
    assert not by_library(Stack(torch.empty(128, 64, device="meta"), regions), 4096)


def plain(r, w, k, v, a, b, *, scale, initial_state, output_final_state, cu_seqlens):
    """What fla says its chunk_rwkv7 computes, token by token: S [k, v] decays by exp(w) on k."""
    assert output_final_state
    y = torch.empty_like(v)
    states = initial_state.clone()
    for n, (start, stop) in enumerate(itertools.pairwise(cu_seqlens.tolist())):
        for t in range(start, stop):
            S = states[n]
            read = torch.einsum("hk,hkv->hv", a[0, t], S)
            S = S * w[0, t].exp()[..., None] + torch.einsum("hk,hv->hkv", b[0, t], read)
            states[n] = S + torch.einsum("hk,hv->hkv", k[0, t], v[0, t])
            y[0, t] = scale * torch.einsum("hk,hkv->hv", r[0, t], states[n])
    return y, states


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_chunked_rule_is_asked_for_the_same_recurrence(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    batch = pack([Row(slot=3, tokens=(1,) * 5), Row(slot=1, tokens=(1,) * 70)], torch.device("cpu"))
    shape = (75, HEADS, SIZE)
    r, k, v, kk, a, w = (torch.randn(shape, generator=generator) for _ in range(6))
    decay, a = torch.exp(-(torch.e**-0.5) * torch.sigmoid(w)), torch.sigmoid(a)
    kk = torch.nn.functional.normalize(kk, dim=-1)
    before = torch.randn(5, HEADS, SIZE, SIZE, generator=generator).to(dtype)
    exact, fast = before.clone(), before.clone()

    expected = CpuOps().wkv7(r, decay, k, v, kk, a, exact, batch)
    found = chunked(plain, r, decay, k, v, kk, a, fast, batch)

    loose = 1e-5 if dtype == torch.float32 else 5e-2
    assert torch.norm(found - expected) < loose * torch.norm(expected)
    assert torch.norm(fast.float() - exact.float()) < loose * torch.norm(exact.float())
    assert torch.equal(fast[[0, 2, 4]], before[[0, 2, 4]])
    assert not torch.equal(fast[1], before[1])
