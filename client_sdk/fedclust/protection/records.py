"""Rule: a group releases the middle value of its persons, once at least p of them have a value.

Of numbers it releases the middle value; of levels the commonest. Give every person of the group
this value, and the group releases the same. So whatever a record proves is also true of a group of
identical persons.
"""

from __future__ import annotations

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray


def group_members(groups: IntArray, n_groups: int) -> IntArray:
    """Return the persons of each group as a matrix (m, largest size), filled up with -1.

    Parameters
    ----------
    groups : (n,) int64
        From 0; a negative number is no group.
    n_groups : int
    """
    order = np.argsort(groups, kind="stable")
    order = order[np.searchsorted(groups[order], 0) :]
    sizes = np.bincount(groups[order], minlength=n_groups)
    width = int(sizes.max(initial=1))
    members = np.full((n_groups, width), -1, dtype=np.int64)
    members[np.arange(width) < sizes[:, None]] = order
    return members


def find_middles(
    values: FloatArray, members: IntArray, p: int, n_levels: int | None = None
) -> FloatArray:
    """Return what decides the record of each group.

    Parameters
    ----------
    values : (n,) float64
        Of one column; NaN where missing.
    members : (m, w) int64
        See :func:`group_members`.
    p : int
    n_levels : int, optional
        Of a column of levels.

    Returns
    -------
    (m, 2) or (m, L) float64
        Of numbers the two middle values, equal for an odd number of them. Of levels the number of
        persons at each. NaN for a group in which fewer than ``p`` persons have a value.
    """
    held = np.append(values, np.nan)[members]
    n_known = (~np.isnan(held)).sum(axis=1)
    if n_levels is None:
        held.sort(axis=1)  # NaN last
        rows = np.arange(len(held))
        lower = np.maximum(n_known - 1, 0) // 2
        found = np.column_stack([held[rows, lower], held[rows, n_known // 2]])
    else:
        levels = np.arange(n_levels)
        found = np.stack([(held == level).sum(axis=1) for level in levels], axis=1).astype(float)
    found[n_known < p] = np.nan
    return found
