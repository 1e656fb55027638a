"""The environment under which the vendor's matrix library gave every row the same bits.

With no workspace the library cannot cut K into parts by the number of rows. It is observed, not
promised: whoever uses it checks every weight shape and row bucket at start. The variables are read
when the library is loaded, so they must stand in the environment before torch is imported; this
module therefore imports nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping

ENVIRONMENT: Mapping[str, str] = {
    "TORCH_BLAS_PREFER_CUBLASLT": "1",
    "CUBLASLT_WORKSPACE_SIZE": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
}


def unmet(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the variables that are not as `ENVIRONMENT` says."""
    return tuple(name for name, value in ENVIRONMENT.items() if environ.get(name) != value)
