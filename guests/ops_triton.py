"""The operators of an RWKV-7 step on a CUDA device, by the kernels of this package."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Protocol

import torch
import triton

from statevisor.guests import launch_triton, linear_triton, sparse_triton, stacks_triton
from statevisor.guests.launch_triton import Launcher, can_depend
from statevisor.guests.mixers import shift_triton, time_triton, wkv7_triton
from statevisor.guests.ops import Activation, Product, RaggedBatch
from statevisor.guests.tiles import TILES
from statevisor.hypervisor.errors import CapabilityMissing

#: Heads of one program in the elementwise kernels, channels [v] of one in the recurrence.
BLOCK_H, BLOCK_V = 4, 16
#: Warps per program, pinned: the order of a reduction depends on them.
ELEMENTWISE_WARPS, WKV_WARPS, NORM_WARPS = 1, 1, 8
_HEAD = wkv7_triton.HEAD.value
#: Row counts that `admit` tries: both ends of every bucket.
_ADMITTED = (1, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 512, 513, 1024)
#: Prefixes of the variables that choose or change kernels in the libraries below.
_STEERING = ("CUBLAS", "TORCH_BLAS", "TORCH_ALLOW_TF32", "NVIDIA_TF32", "TRITON_")


class Linear(Protocol):
    """One kind of row-invariant product."""

    kind: str

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, activation: Activation | None = None
    ) -> torch.Tensor: ...

    def group(self, products: Sequence[Product]) -> list[torch.Tensor]: ...

    def describe(self) -> str: ...


class TritonOps:
    """`Ops` on one CUDA device; calls must follow each other on one stream (or in one graph)."""

    exact = True
    chunked: int | None = None

    def __init__(
        self,
        device: torch.device,
        act: torch.dtype,
        linear: Linear | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """linear: the kind of product, for all weights and row counts; Triton's by default.

        environ: what to read the variables of the fingerprint from; the process's own by default.
        """
        self.device = device
        dependent = can_depend(device)
        self.launch = {
            "DEPENDENT": dependent,
            "launch_pdl": dependent,
            # Contraction of products and sums is written out where it is wanted.
            "enable_fp_fusion": False,
        }
        self._environ = os.environ if environ is None else environ
        self.act = act
        self._linear = linear or linear_triton.TritonLinear(device)
        self.multiprocessors = (
            torch.cuda.get_device_properties(device).multi_processor_count
            if device.type == "cuda"
            else 1
        )
        self.fuses = linear is None and act.itemsize == 2
        self.launcher = Launcher()
        self.stacks = stacks_triton.Stacks(TILES, dependent, self.launcher)

    def fingerprint(self) -> Mapping[str, str]:
        """What fixes the bits: versions, kernels, tiles, device and variables."""
        facts = {
            "backend": "triton",
            "act": str(self.act).removeprefix("torch."),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "kernels": _source_digest(
                launch_triton,
                linear_triton,
                sparse_triton,
                stacks_triton,
                shift_triton,
                time_triton,
                wkv7_triton,
            ),
            "wkv": f"block {BLOCK_V} warps {WKV_WARPS}",
            "elementwise": f"heads {BLOCK_H} warps {ELEMENTWISE_WARPS}",
            "norm": f"warps {NORM_WARPS}",
            "linear": self._linear.describe(),
            "stacks": self.stacks.describe() if self.fuses else "none",
        }
        if self.device.type == "cuda":
            card = torch.cuda.get_device_properties(self.device)
            facts["device"] = f"{card.name} sm_{card.major}{card.minor}"
            facts["multiprocessors"] = str(card.multi_processor_count)
            facts["cuda"] = str(torch.version.cuda)
        for name in sorted(self._environ):
            # Where kernels are kept changes none of them.
            if name.startswith(_STEERING) and not name.endswith("_DIR"):
                facts[f"env {name}"] = self._environ[name]
        return facts

    def admit(self, weights: Iterable[torch.Tensor]) -> None:
        """Compare rows of every row bucket with the same rows alone, for every weight shape.

        Compiles the products on the way. Raises: CapabilityMissing (some row changed).
        """
        if self.stacks.known:
            self.stacks.check(_ADMITTED)
            return
        generator = torch.Generator(self.device).manual_seed(2)
        for weight in {tuple(weight.shape): weight for weight in weights}.values():
            size = (max(_ADMITTED), weight.shape[1])
            x = torch.randn(size, generator=generator, device=self.device).to(self.act)
            for rows in _ADMITTED:
                got = self.linear(x[:rows], weight)
                for row in {0, rows // 2, rows - 1}:
                    if not torch.equal(got[row], self.linear(x[row : row + 1], weight)[0]):
                        raise CapabilityMissing(
                            f"a product with a weight of {list(weight.shape)} gives other bits at"
                            f" {rows} rows than at one on this device"
                        )

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, activation: Activation | None = None
    ) -> torch.Tensor:
        """act(x [N, K] @ weight [O, K]^T) -> [N, O]."""
        return self._linear(_aligned(x), _aligned(weight), activation)

    def linears(self, products: Sequence[Product]) -> list[torch.Tensor]:
        """Several linears in one launch where the kind of product has one."""
        return self._linear.group([(_aligned(x), _aligned(w), code) for x, w, code in products])

    def layer_norm(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Layer norm over C of x [N, C]."""
        rows, width = x.shape
        out = torch.empty_like(x)
        if rows:
            shift_triton.layer_norm_kernel[(rows,)](
                _aligned(x),
                _aligned(weight),
                _aligned(bias),
                out,
                WIDTH=width,
                EPS=eps,
                BLOCK=triton.next_power_of_2(width),
                num_warps=NORM_WARPS,
                **self.launch,
            )
        return out

    def shift_mix(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        eps: float,
        mixes: torch.Tensor,
        shift: torch.Tensor,
        batch: RaggedBatch,
    ) -> torch.Tensor:
        """h = LN(x); out[m] = h + (h_prev - h) mixes[m] -> [M, N, C]; modifies shift."""
        (tokens, width), count, rows = x.shape, mixes.shape[0], batch.slots.shape[0]
        out = x.new_empty(count, tokens, width)
        if tokens == 0:
            return out
        sizes = {
            "STRIDE": row_stride(shift, (width,)),
            "WIDTH": width,
            "BLOCK": triton.next_power_of_2(width),
            "num_warps": NORM_WARPS,
            **self.launch,
        }
        longer = batch.longest > 1
        spill = shift.new_empty(rows if longer else 0, width)
        shift_triton.shift_mix_kernel[(tokens,)](
            _aligned(x),
            _aligned(weight),
            _aligned(bias),
            _aligned(mixes),
            shift,
            spill,
            out,
            batch.rows,
            batch.slots,
            batch.starts,
            tokens,
            MIXES=count,
            EPS=eps,
            **sizes,
        )
        if longer:
            shift_triton.settle_kernel[(rows,)](spill, shift, batch.slots, batch.starts, **sizes)
        return out

    def wkv7_inputs(
        self,
        w: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        a: torch.Tensor,
        v_gate: torch.Tensor | None,
        v_first: torch.Tensor | None,
        w0: torch.Tensor,
        a0: torch.Tensor,
        v0: torch.Tensor | None,
        k_k: torch.Tensor,
        k_a: torch.Tensor,
        heads: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """decay, k, v, kk, a, each [N, H, D]; decay in float32."""
        tokens = k.shape[0]
        shape = (tokens, heads, _HEAD)
        decay = torch.empty(shape, dtype=torch.float32, device=k.device)
        outs = [k.new_empty(shape) for _ in range(4)]
        gated = v_first is not None
        if tokens:
            # Without the value residual its three operands are not read; any tensor stands in.
            residual = (v_gate, v_first, v0) if gated else (v, v, w0)
            wkv7_triton.inputs_kernel[(tokens, triton.cdiv(heads, BLOCK_H))](
                *map(_aligned, (w, k, v, a, *residual[:2], w0, a0, residual[2], k_k, k_a)),
                decay,
                *outs,
                HEADS=heads,
                GATED=gated,
                BLOCK_H=BLOCK_H,
                num_warps=ELEMENTWISE_WARPS,
                **self.launch,
            )
        return decay, outs[0], outs[1], outs[2], outs[3]

    def wkv7(
        self,
        r: torch.Tensor,
        decay: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        kk: torch.Tensor,
        a: torch.Tensor,
        state: torch.Tensor,
        batch: RaggedBatch,
    ) -> torch.Tensor:
        """The recurrence in place in the bank; returns y [N, H, D] float32; modifies state."""
        _, heads, size = r.shape
        y = torch.empty(r.shape, dtype=torch.float32, device=r.device)
        rows = batch.slots.shape[0]
        if rows:
            wkv7_triton.wkv7_kernel[(heads * (size // BLOCK_V), rows)](
                *map(_aligned, (r, decay, k, v, kk, a)),
                state,
                y,
                batch.slots,
                batch.starts,
                HEADS=heads,
                STRIDE=row_stride(state, (heads, size, size)),
                BLOCK_V=BLOCK_V,
                num_warps=WKV_WARPS,
                **self.launch,
            )
        return y

    def wkv7_output(
        self,
        y: torch.Tensor,
        r: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        r_k: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        """(GroupNorm_H(y) + (sum_head r k r_k) v) g -> [N, C]."""
        tokens, heads, _ = y.shape
        out = torch.empty_like(g)
        if tokens:
            wkv7_triton.output_kernel[(tokens, triton.cdiv(heads, BLOCK_H))](
                *map(_aligned, (y, r, k, v, g, weight, bias, r_k)),
                out,
                HEADS=heads,
                EPS=eps,
                BLOCK_H=BLOCK_H,
                num_warps=ELEMENTWISE_WARPS,
                **self.launch,
            )
        return out


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself: contiguous, and at an address that compiles to the one pinned kernel."""
    assert tensor.is_contiguous(), f"not contiguous: {tuple(tensor.stride())}"
    assert tensor.data_ptr() % 16 == 0, "not at a multiple of 16 bytes"
    return tensor


def row_stride(view: torch.Tensor, row: tuple[int, ...]) -> int:
    """Elements from one slot to the next in a view of the bank, whose rows must be dense."""
    assert view.shape[1:] == row, f"rows of {tuple(view.shape[1:])}, not {row}"
    assert view[0].is_contiguous(), f"rows are not dense: {tuple(view.stride())}"
    stride = view.stride(0)
    assert view.data_ptr() % 16 == 0, "not at a multiple of 16 bytes"
    assert stride * view.element_size() % 16 == 0, "row stride is no multiple of 16 bytes"
    return stride


def _source_digest(*modules: ModuleType) -> str:
    """Hash of the kernels' sources: another text is another build."""
    text = "".join(inspect.getsource(module) for module in modules)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
