"""The error where the extra ``[dual]`` is not installed."""

from __future__ import annotations

__all__ = ["MissingExtra"]


class MissingExtra(ImportError):
    """A package is needed that only the extra ``[dual]`` brings; the message says how."""

    def __init__(self, what: str) -> None:
        super().__init__(f'{what} needs the extra [dual]: pip install "fedclust[dual]"')
