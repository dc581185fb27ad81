"""Going through a source again and again: in this process, or on a Dask cluster."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.rows import RUN
from fedclust.data.daskdata import DaskReader
from fedclust.data.raw import Origin
from fedclust.data.rows import Block, Rows
from fedclust.data.sql import SqlReader
from fedclust.data.stored import Passes
from fedclust.errors import DataError

__all__ = ["DaskPasses", "ReaderPasses", "passes_of", "refuse_to_store"]

_T = TypeVar("_T")
FloatArray = NDArray[np.float64]
#: Partitions that are worked on, or whose answers wait for their turn, at a time.
_WINDOW: Final = 32
#: What a pass saw is known by a sum modulo this.
_MARKS: Final = 2**64


def refuse_to_store(rows: Rows) -> None:
    """Raise DataError for a source that cannot be gone through again and again."""
    if isinstance(rows.reader, SqlReader):
        rows.reader.close()
        message = "a query may answer differently each time; out of core takes a Parquet file of it"
        raise rows.origin.fault("out-of-core", message)


def passes_of(rows: Rows, lacking: NDArray[np.bool_], n: int, mark: int) -> Passes:
    """Return what goes through a source whose rows were read once.

    Parameters
    ----------
    rows : Rows
    lacking : (d,) bool
        Columns of features that the site counts as lacking.
    n : int
        How many rows there were.
    mark : int
        Of their blocks :meth:`fedclust.data.rows.Block.mark`, added up.
    """
    if isinstance(rows.reader, DaskReader):
        return DaskPasses(rows, lacking, n, mark)
    return ReaderPasses(rows, lacking, n, mark)


class ReaderPasses:
    """Any source, decoded here, a run at a time."""

    def __init__(self, rows: Rows, lacking: NDArray[np.bool_], n: int, mark: int) -> None:
        self._rows, self._lacking, self._n, self._mark = rows, lacking, n, mark % _MARKS
        self._stamp = rows.stamp()

    @property
    def origin(self) -> Origin:
        """What messages call it."""
        return self._rows.origin

    def go(
        self,
        function: Callable[..., _T],
        along: Sequence[NDArray[Any]],
        chosen: NDArray[np.bool_] | None,
    ) -> Iterator[_T]:
        """Yield ``function(run, *parts)`` of every run, in order; see :class:`Passes`."""
        if self._rows.stamp() != self._stamp:
            raise _changed(self.origin)
        at = taken = 0
        for run in self._whole(chosen):
            taken, at = taken + len(run), taken
            yield function(run, *(each[..., at:taken] for each in along))

    def _whole(self, chosen: NDArray[np.bool_] | None) -> Iterator[FloatArray]:
        """Yield the chosen rows in runs of exactly ``RUN``, the last one shorter."""
        at, mark, waiting = 0, 0, np.empty((0, len(self._lacking)))
        for block in self._rows.runs(RUN):
            if at + len(block) > self._n:
                raise _changed(self.origin)
            mark += block.mark()
            run = _run(self._rows, block, self._lacking)
            if chosen is not None:
                run = run[chosen[at : at + len(block)]]
            at += len(block)
            if len(waiting):
                run = np.concatenate([waiting, run])
            for start in range(0, len(run) - RUN + 1, RUN):
                yield run[start : start + RUN]
            waiting = run[len(run) - len(run) % RUN :]
        # Whatever the file says of when it was written: these are the rows that were read first.
        if at != self._n or mark % _MARKS != self._mark:
            raise _changed(self.origin)
        if len(waiting):
            yield waiting


class DaskPasses:
    """A Dask collection: decoded, and the function called, where its partitions are computed.

    A partition is one run; empty ones are passed over. Partitions are worked on side by side, as
    many as the cluster takes; their answers come in order.
    """

    def __init__(self, rows: Rows, lacking: NDArray[np.bool_], n: int, mark: int) -> None:
        from dask.delayed import delayed

        self._rows, self._lacking, self._mark = rows, lacking, mark % _MARKS
        reader: Any = rows.reader
        self._partitions = reader.partitions([rows.local[name] for name in rows.columns])
        size = delayed(len, pure=False)
        self._ends = np.cumsum(self._computed([size(p) for p in self._partitions], 0))
        if self._ends[-1] != n:
            raise _computed_otherwise(self.origin)
        #: What each partition's rows were known by in the first pass.
        self._marks: dict[int, int] = {}

    @property
    def origin(self) -> Origin:
        """What messages call it."""
        return self._rows.origin

    def go(
        self,
        function: Callable[..., _T],
        along: Sequence[NDArray[Any]],
        chosen: NDArray[np.bool_] | None,
    ) -> Iterator[_T]:
        """Yield ``function(run, *parts)`` of every partition, in order; see :class:`Passes`."""
        from dask.delayed import delayed

        work = delayed(_Work(self._rows, self._lacking, function), pure=False)
        ends: list[int] = self._ends.tolist()
        start = taken = 0
        for first in range(0, len(ends), _WINDOW):
            window, numbers = [], []
            for number in range(first, min(first + _WINDOW, len(ends))):
                end = ends[number]
                own = None if chosen is None else chosen[start:end]
                n_own = end - start if own is None else int(np.count_nonzero(own))
                if n_own:
                    parts = [np.array(each[..., taken : taken + n_own]) for each in along]
                    partition = self._partitions[number]
                    window.append(work(partition, start, end - start, own, *parts))
                    numbers.append(number)
                start, taken = end, taken + n_own
            for number, answer in zip(numbers, self._computed(window, first), strict=True):
                if isinstance(answer, _Faults):
                    raise answer.error(self.origin, number)
                mark, found = answer
                self._check(number, mark)
                yield found

    def _check(self, number: int, mark: int) -> None:
        """Refuse a partition with other values than before, or than were read first."""
        seen = number in self._marks
        if self._marks.setdefault(number, mark) != mark:
            raise _computed_otherwise(self.origin)
        if not seen and len(self._marks) == np.count_nonzero(np.diff(self._ends, prepend=0)):
            every = sum(self._marks.values())
            if every % _MARKS != self._mark:
                raise _computed_otherwise(self.origin)

    def _computed(self, window: list[Any], first: int) -> Sequence[Any]:
        from dask.base import compute

        try:
            answers: Sequence[Any] = compute(*window)  # type: ignore[no-untyped-call]
        except DataError:
            raise
        except Exception as error:
            # Whatever the graph holds may fail, and its message may hold a value.
            last = first + len(window) - 1
            message = f"one of partitions {first} to {last} could not be computed"
            message += f" ({type(error).__name__})"
            raise self.origin.fault("dask", message) from None
        return answers


class _Faults:
    """What is wrong with a partition: an error might say more than anybody may read in a log."""

    def __init__(self, rows: Rows | None = None, failed: str | None = None) -> None:
        self._found = [] if rows is None else rows.faults
        self._failed = failed

    def error(self, origin: Origin, number: int) -> DataError:
        """Return it as an error; ``number`` is the partition's."""
        if self._failed is not None:
            message = f"partition {number} could not be worked on ({self._failed})"
            return origin.fault("dask", message)
        return self._found[0].error(origin) if self._found else _computed_otherwise(origin)


class _Work:
    """Decodes a partition and calls a function of its rows, wherever Dask has it done."""

    def __init__(
        self, rows: Rows, lacking: NDArray[np.bool_], function: Callable[..., Any]
    ) -> None:
        # Without its reader, which holds the whole collection.
        self._chunk = rows.reader.chunk  # type: ignore[attr-defined]
        self._rows = copy.copy(rows)
        del self._rows.reader
        self._lacking, self._function = lacking, function

    def __call__(
        self,
        partition: Any,
        start: int,
        size: int,
        chosen: NDArray[np.bool_] | None,
        *parts: NDArray[Any],
    ) -> Any:
        try:
            return self._done(partition, start, size, chosen, parts)
        except Exception as error:
            # A worker logs what a task that raises was called with, and that is rows.
            return _Faults(failed=type(error).__name__)

    def _done(
        self,
        partition: Any,
        start: int,
        size: int,
        chosen: NDArray[np.bool_] | None,
        parts: Sequence[NDArray[Any]],
    ) -> Any:
        rows = copy.copy(self._rows)
        if len(partition) != size:
            return _Faults()
        columns = [rows.local[name] for name in rows.columns]
        block = rows.decoded(self._chunk(partition, columns), start)
        if rows.faults:
            return _Faults(rows)
        run = _run(rows, block, self._lacking)
        # As where the step itself is computed: what overflows is refused, not warned of.
        with np.errstate(over="ignore", invalid="ignore"):
            found = self._function(run if chosen is None else run[chosen], *parts)
        return block.mark(), found


def _run(rows: Rows, block: Block, lacking: NDArray[np.bool_]) -> FloatArray:
    run = rows.matrix(block)
    if lacking.any():
        run[:, lacking] = np.nan
    return run


def _changed(origin: Origin) -> DataError:
    message = "it has other rows than when it was read first: take part with it as it was then"
    return origin.fault("changed", message)


def _computed_otherwise(origin: Origin) -> DataError:
    message = "it has other rows, or the same in another order, than when it was read first; what "
    message += "a shuffle or a draw gives hangs on when it is computed: persist() it, or take part "
    message += "with a Parquet file of it"
    return origin.fault("changed", message)
