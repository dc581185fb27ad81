"""Compilation by numba."""

from collections.abc import Callable
from typing import Any

import numba


def compiled(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile for one signature, cached on disk where numba finds a writable place."""

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(signature, cache=True)(function)
        except (RuntimeError, OSError):
            # A read-only installation without a home directory: every process compiles.
            return numba.njit(signature)(function)

    return decorate
