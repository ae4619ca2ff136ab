"""The kernels that a process uses unless it is given others: those in numba.

Imports numba on the first use (0.3 s, plus compiling when its disk cache is empty).
"""

from __future__ import annotations

from typing import cast

from stelae.storage.kernels.api import Kernels
from stelae.storage.kernels.index_api import IndexKernels


def default_kernels() -> Kernels:
    """Return the numba kernels for rows."""
    from stelae.storage.kernels import compiled

    return cast(Kernels, compiled)


def default_index_kernels() -> IndexKernels:
    """Return the numba kernels for entries of secondary indexes."""
    from stelae.storage.kernels import index_compiled

    return cast(IndexKernels, index_compiled)
