"""How environments are compiled: exactly, so that sums keep their order and states keep gymnasium's bits."""

from __future__ import annotations

import numba

compiled = numba.njit(nogil=True, cache=True, error_model="numpy")
