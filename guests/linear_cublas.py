"""The vendor library's matrix products; without a workspace the alternative to `linear_triton`.

One kind serves all row counts of a weight, since the bits of the two kinds differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from statevisor.guests.ops import Activation, Product
from statevisor.guests.starved_blas import ENVIRONMENT, unmet
from statevisor.hypervisor.errors import CapabilityMissing


class LibraryLinear:
    """act(x @ weight^T) by the library, as it pleases: rows depend on their number."""

    kind = "library"

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, activation: Activation | None = None
    ) -> torch.Tensor:
        """act(x [N, K] @ weight [O, K]^T) -> [N, O]; the activation sees the rounded product."""
        product = torch.mm(x, weight.T)
        match activation:
            case "tanh":
                return torch.tanh(product.float()).to(product.dtype)
            case "sigmoid":
                return torch.sigmoid(product.float()).to(product.dtype)
            case "relu2":
                return torch.relu(product.float()).square().to(product.dtype)
            case None:
                return product

    def group(self, products: Sequence[Product]) -> list[torch.Tensor]:
        """Several products, one by one."""
        return [self(*product) for product in products]

    def describe(self) -> str:
        """What fixes the bits."""
        return "library"


class CublasLinear(LibraryLinear):
    """The same without a workspace, refused unless its environment was set at start."""

    kind = "cublas"

    def __init__(self, environ: Mapping[str, str]) -> None:
        """environ: of this process as it was when torch was imported.

        Raises: CapabilityMissing.
        """
        missing = unmet(environ)
        if missing:
            raise CapabilityMissing(
                f"the library product needs {', '.join(missing)} set before torch is loaded",
                hint="Start the process with "
                + " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items()),
            )

    def describe(self) -> str:
        """What fixes the bits."""
        return "library without workspace, " + " ".join(
            f"{name}={value}" for name, value in ENVIRONMENT.items()
        )
