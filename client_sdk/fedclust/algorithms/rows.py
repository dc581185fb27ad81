"""Rows that are gone through a run at a time, wherever they are: in memory, a file, a cluster.

A local step that needs no more than this works on rows that memory does not hold. What it keeps
of each row (a label, a distance) is in arrays that the rows make room for, where there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = ["RUN", "ArrayRows", "Rows", "matrix_of", "rows_of", "whole"]

#: Rows in a run, the last one shorter, wherever they are but on a cluster: what is added up run by
#: run is the same to the last bit.
RUN: Final = 16_384
_T = TypeVar("_T")
FloatArray = NDArray[np.float64]


@runtime_checkable
class Rows(Protocol):
    """A matrix of rows (n, d).

    Attributes
    ----------
    derived : dict
        What was found of these rows, for whoever asks again; it decides nothing.
    """

    derived: dict[str, Any]

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""

    def map(self, function: Callable[..., _T], *along: NDArray[Any]) -> Iterator[_T]:
        """Yield ``function(run, *parts)`` for runs of rows that follow each other, all in order.

        Parameters
        ----------
        function : callable
            Of a run (m, d), not to be written to, and of that part of each of ``along`` that goes
            with it. It may run in another process: what it gives is all that comes of it.
        *along : arrays
            Their last axis is the rows'.
        """

    def take(self, numbers: NDArray[np.intp]) -> FloatArray:
        """Return the rows (m, d) of these numbers (m,)."""

    def changed(self, change: Callable[[FloatArray], FloatArray], width: int | None = None) -> Rows:
        """Return the rows as ``change``, a function of runs (m, d), makes them.

        ``width``: their new number of columns, by default d.
        """

    def kept(self, chosen: NDArray[np.bool_]) -> Rows:
        """Return the chosen (n,) rows."""

    def array(self, kind: type[np.generic], *shape: int) -> NDArray[Any]:
        """Return an array (*shape, n) of zeros for something of each row."""


class ArrayRows:
    """An array (n, d), in runs of ``RUN``."""

    def __init__(self, X: FloatArray) -> None:
        self.X = X
        self.derived: dict[str, Any] = {}

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""
        n, d = self.X.shape
        return n, d

    def map(self, function: Callable[..., _T], *along: NDArray[Any]) -> Iterator[_T]:
        """Yield ``function(run, *parts)`` for every run, in order; see :class:`Rows`."""
        for start in range(0, len(self.X), RUN):
            run = slice(start, start + RUN)
            yield function(self.X[run], *(each[..., run] for each in along))

    def take(self, numbers: NDArray[np.intp]) -> FloatArray:
        """Return the rows (m, d) of these numbers (m,)."""
        return np.asarray(self.X[numbers])

    def changed(self, change: Callable[[FloatArray], FloatArray], width: int | None = None) -> Rows:
        """Return the changed rows, an array too, whose width is its own."""
        del width
        return ArrayRows(change(self.X))

    def kept(self, chosen: NDArray[np.bool_]) -> Rows:
        """Return the chosen (n,) rows, an array too."""
        return ArrayRows(self.X[chosen])

    def array(self, kind: type[np.generic], *shape: int) -> NDArray[Any]:
        """Return an array (*shape, n) of zeros."""
        return np.zeros((*shape, len(self.X)), dtype=kind)


def whole(rows: Rows) -> FloatArray:
    """Return all rows (n, d) as an array: of few rows."""
    if isinstance(rows, ArrayRows):
        return rows.X
    runs = list(rows.map(np.asarray))
    return np.concatenate(runs) if runs else np.empty(rows.shape)


def rows_of(X: FloatArray | Rows) -> Rows:
    """Return rows as :class:`Rows`, whichever way they came."""
    return X if isinstance(X, Rows) else ArrayRows(X)


def matrix_of(rows: Rows) -> FloatArray:
    """Return rows as ``SiteData.X`` holds them: an array where they are one, else themselves.

    Methods that go through :attr:`SiteData.rows` alone do not notice; others are not given any
    (``Method.by_runs``).
    """
    return rows.X if isinstance(rows, ArrayRows) else cast(FloatArray, rows)
