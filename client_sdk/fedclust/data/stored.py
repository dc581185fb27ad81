"""Rows that stay where they are, and are decoded anew in every pass over them.

No row is kept: neither in memory beyond the run at hand, nor on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.rows import Rows
from fedclust.data.raw import Origin
from fedclust.data.scratch import Scratch

__all__ = ["Passes", "StoredRows"]

_T = TypeVar("_T")
FloatArray = NDArray[np.float64]
Change = Callable[[FloatArray], FloatArray]


class Passes(Protocol):
    """A source that can be gone through again and again."""

    @property
    def origin(self) -> Origin:
        """What messages call it."""

    def go(
        self,
        function: Callable[..., _T],
        along: Sequence[NDArray[Any]],
        chosen: NDArray[np.bool_] | None,
    ) -> Iterator[_T]:
        """Yield ``function(run, *parts)`` of every run (m, d), in order.

        ``chosen`` (n,): of which rows alone; ``along`` have an entry for each of those.

        Raises
        ------
        DataError
            The source cannot be read any more, or has other rows than before.
        """


class StoredRows:
    """Rows (n, d) of a source, decoded whenever they are asked for.

    Parameters
    ----------
    source : Passes
    shape : tuple of int
        (n, d) of the source.
    scratch : Scratch
        Where arrays of its rows go.
    """

    def __init__(self, source: Passes, shape: tuple[int, int], scratch: Scratch) -> None:
        self._source, self._scratch, self._shape = source, scratch, shape
        self.derived: dict[str, Any] = {}
        self._changes: tuple[Change, ...] = ()
        #: Which of the source's rows these are; None: all.
        self._chosen: NDArray[np.bool_] | None = None

    def __array__(self, *_: Any, **__: Any) -> FloatArray:
        # Loudly: an array of all rows is what nobody asked for who reads them like this.
        raise TypeError("these rows are not in memory: go through them in runs")

    def __len__(self) -> int:
        return self._shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""
        return self._shape

    def map(self, function: Callable[..., _T], *along: NDArray[Any]) -> Iterator[_T]:
        """Yield ``function(run, *parts)`` for every run, in order; see :class:`Rows`."""
        yield from self._source.go(_Changed(function, self._changes), along, self._chosen)

    def take(self, numbers: NDArray[np.intp]) -> FloatArray:
        """Return the rows (m, d) of these numbers (m,), by a pass over all."""
        wanted = np.unique(numbers)
        marks = self.array(np.bool_)
        marks[wanted] = True
        found = [part for part in self.map(_marked, marks) if len(part)]
        rows = np.concatenate(found) if found else np.empty((0, self._shape[1]))
        return np.asarray(rows[np.searchsorted(wanted, numbers)])

    def changed(self, change: Change, width: int | None = None) -> Rows:
        """Return the rows as ``change`` makes them, run by run, of ``width`` columns."""
        other = self._other()
        other._shape = self._shape[0], self._shape[1] if width is None else width
        other._changes = (*self._changes, change)
        return other

    def kept(self, chosen: NDArray[np.bool_]) -> Rows:
        """Return the chosen (n,) rows."""
        every = chosen
        if self._chosen is not None:
            every = self._chosen.copy()
            every[self._chosen] = chosen
        other = self._other()
        other._chosen, other._shape = every, (int(np.count_nonzero(chosen)), self._shape[1])
        return other

    def array(self, kind: type[np.generic], *shape: int) -> NDArray[Any]:
        """Return an array (*shape, n) of zeros, on disk."""
        return self._scratch.array((*shape, self._shape[0]), kind)

    def _other(self) -> StoredRows:
        other = StoredRows(self._source, self._shape, self._scratch)
        other._changes, other._chosen = self._changes, self._chosen
        return other


class _Changed:
    """A function of runs as they become; a class, for it may have to travel."""

    def __init__(self, function: Callable[..., Any], changes: tuple[Change, ...]) -> None:
        self._function, self._changes = function, changes

    def __call__(self, run: FloatArray, *parts: NDArray[Any]) -> Any:
        for change in self._changes:
            run = change(run)
        return self._function(run, *parts)


def _marked(run: FloatArray, marks: NDArray[np.bool_]) -> FloatArray:
    return run[marks]
