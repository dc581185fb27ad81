"""What a group's records prove of 1 to p - 1 of its persons, by enumerating all states.

A state is how many of the group's n persons are in each cell, such as "a and not b".
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.protection.columns import TableColumn, find_middles, group_members

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def states(n: int, n_cells: int) -> IntArray:
    """Return every way (states, cells) in which n persons may be in the cells."""
    cuts = itertools.combinations(range(n + n_cells - 1), n_cells - 1)
    bounds = np.array([(-1, *each, n + n_cells - 1) for each in cuts])
    return np.diff(bounds, axis=1) - 1


def records(held: IntArray, values: Sequence[float], column: TableColumn, p: int) -> FloatArray:
    """Return the record (states,) of a group in each state.

    Parameters
    ----------
    held : (states, cells) int64
    values : sequence of float
        The column's value in each cell; NaN where it is missing.
    column : TableColumn
        How it is released.
    p : int
    """
    m, n_cells = held.shape
    cells = np.repeat(np.tile(np.arange(n_cells), m), held.ravel())
    groups = np.repeat(np.arange(m), held.sum(axis=1))
    found = find_middles(np.array(values)[cells], group_members(groups, m), p, column.n_levels)
    released, known = np.full(m, np.nan), ~np.isnan(found[:, 0])
    released[known] = column.records(found[known])
    return released


def proven(held: IntArray, released: Sequence[FloatArray], p: int) -> BoolArray:
    """Return in which states (states,) the records prove that 1 to p - 1 have something.

    They do if so many persons are in a set of cells in all states with the same records.
    """
    columns = np.nan_to_num(np.column_stack(released), nan=-1.0)
    labels = np.unique(columns, axis=0, return_inverse=True)[1].ravel()
    found = np.zeros(len(held), np.bool_)
    for label in range(int(labels.max()) + 1):
        same = held[labels == label]
        counts = (same[:, each].sum(axis=1) for each in _sets(held.shape[1]))
        found[labels == label] = any(each.min() >= 1 and each.max() < p for each in counts)
    return found


def _sets(n_cells: int) -> Iterator[list[int]]:
    for size in range(1, n_cells):
        yield from map(list, itertools.combinations(range(n_cells), size))
