"""The operators an RWKV-7 step is made of, as one Protocol with a CPU and a Triton implementation.

Every operator keeps the exactness contract: one output row depends on its own input row (for the
operators that take a batch: on the tokens of its own actor before it and on its own slot) and on
nothing else, bit for bit, whatever N, R, the order of rows or the split of the tokens into calls.
Those of the fast mode (`exact` is False) do not.

Words: N tokens of all rows together, R rows, C channels, H heads, D = 64 channels a head, K and O
in and out features. Activations have the compute dtype `act`; sums and the recurrence are in
float32; results are rounded to `act` once, at the end of each operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

#: What is applied to a linear's float32 sums before they are rounded; relu2 is relu(x)^2.
Activation = Literal["tanh", "sigmoid", "relu2"]
#: One linear: x [N, K], weight [O, K] and what is applied to the sums.
Product = tuple[torch.Tensor, torch.Tensor, Activation | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedBatch:
    """Tokens of several actors packed one behind the other; row r owns starts[r]..starts[r+1]."""

    tokens: torch.Tensor  #: [N] int64, vocabulary ids
    slots: torch.Tensor  #: [R] int64, distinct but for the padding row 0
    starts: torch.Tensor  #: [R+1] int64
    rows: torch.Tensor  #: [N] int64, the row of each token
    firsts: torch.Tensor  #: [N] bool, whether the token is the first of its row
    lasts: torch.Tensor  #: [R] int64, index of each row's last token
    longest: int  #: most tokens of one row
    #: So many rows come first and have one token each: kernels for single tokens may take them.
    singles: int = 0


class Ops(Protocol):
    """One backend. All weights it is given are contiguous and on its device."""

    device: torch.device
    act: torch.dtype
    #: Whether a family's pass in few kernels replaces its pass over these operators.
    fuses: bool
    #: Whether it keeps the exactness contract; without it a replay may give other bits.
    exact: bool
    #: Tokens of the longest row from which the recurrence is made in chunks; None: never.
    chunked: int | None

    def fingerprint(self) -> Mapping[str, str]:
        """What fixes the bits of this backend: library versions, tiles, threads, device."""
        ...

    def admit(self, weights: Iterable[torch.Tensor]) -> None:
        """Get ready for weights of these shapes, before the first step.

        Raises: CapabilityMissing (rows of such a product depend on their number here).
        """
        ...

    def linear(
        self, x: torch.Tensor, weight: torch.Tensor, activation: Activation | None = None
    ) -> torch.Tensor:
        """act(x [N, K] @ weight [O, K]^T) -> [N, O], K order and split fixed per weight shape."""
        ...

    def linears(self, products: Sequence[Product]) -> list[torch.Tensor]:
        """Several linears of as many rows each; every result has the bits of `linear`."""
        ...

    def layer_norm(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Layer norm over C of x [N, C]."""
        ...

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
        """h = LN(x); out[m] = h + (h_prev - h) * mixes[m] -> [M, N, C].

        h_prev of a row's first token is shift[slot]; afterwards shift[slot] is the row's last h.
        mixes [M, C]. shift: a view [slots+1, C] into the bank (row stride is the bank's), modified.
        """
        ...

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
        """The elementwise part before the recurrence; all inputs [N, C] or [C].

        w, a, v_gate are the LoRA outputs without their bias. Returns decay, k, v, kk, a, each
        [N, H, D]: decay = exp(-e^-0.5 sigmoid(w0 + w)); a = sigmoid(a0 + a); kk = k * k_k
        normalised per head (norm clamped at 1e-12); k = k (1 + (a - 1) k_a);
        v = v + (v_first - v) sigmoid(v0 + v_gate) where v_first is given (not in layer 0).
        decay is float32, the others have the dtype `act`.
        """
        ...

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
        """The recurrence, token by token, in place in the bank; returns y [N, H, D] float32.

        S = S diag(w) - (S kk)(kk a)^T + v k^T; y = S r, S indexed [v, k]. Inputs [N, H, D].
        state: a view [slots+1, H, D, D] into the bank, float32 or float16, modified; float16 is
        rounded after every token (y is from the unrounded S of its token, so that one launch over
        T tokens equals T launches).
        """
        ...

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
        """(GroupNorm_H(y) + (sum_head r k r_k) v) * g -> [N, C]; r_k [H, D], g [N, C]."""
        ...
