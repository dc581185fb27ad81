"""Compilation by numba, which only the extra ``[dual]`` installs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedclust.methods.dual.extra import MissingExtra

try:
    import numba
except ImportError:
    raise MissingExtra("the branch and bound of dual") from None

__all__ = ["compiled", "numba"]


def compiled(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile for one signature, cached on disk where numba finds a writable place."""

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(signature, cache=True)(function)
        except (RuntimeError, OSError):
            # A read-only installation without a home directory: every process compiles.
            return numba.njit(signature)(function)

    return decorate
