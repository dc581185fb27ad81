"""Rule: a larger p is served by unions of whole groups, formed once, from records alone.

For p' a union has at least p'/p groups. It releases a column if so many of its groups do, and it
decides once the persons of all its groups were in a file with the column. Then its record never
changes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.protection.cohort import Cohort, PinnedColumn, Unions
from fedclust.protection.columns import choose_nearer, weighted_mean
from fedclust.protection.groups import form_groups
from fedclust.protection.table import embed_records, order_records


def update_unions(cohort: Cohort, p: int) -> Cohort:
    """Return the cohort with unions for ``p`` of all groups that can be united, and their records.

    The same object if nothing changes.
    """
    known = cohort.unions_for(p)
    least = -(-p // cohort.p)
    labels = _label_groups(cohort, known, least)
    n_unions = max(len(known.released), int(labels.max(initial=-1)) + 1)
    released = np.full((n_unions, len(cohort.columns)), np.nan)
    decided = np.zeros(released.shape, dtype=np.bool_)
    kept = tuple(map(slice, known.released.shape))
    released[kept], decided[kept] = known.released, known.decided
    for union in range(n_unions):
        groups = np.flatnonzero(labels == union)
        for place, pinned in enumerate(cohort.columns):
            if len(groups) and not decided[union, place] and pinned.complete[groups].all():
                decided[union, place] = True
                released[union, place] = _union_record(cohort, pinned, groups, least)
    if np.array_equal(labels, known.labels) and np.array_equal(decided, known.decided):
        return cohort
    others = (each for each in cohort.unions if each.p != p)
    return replace(cohort, unions=(*others, Unions(p, labels, released, decided)))


def _label_groups(cohort: Cohort, known: Unions, least: int) -> NDArray[np.int32]:
    """Return the union (m,) of each group; those that wait are united if they are enough."""
    labels = np.full(len(cohort.sizes), -1, dtype=np.int32)
    labels[: len(known.labels)] = known.labels
    waiting = np.flatnonzero(cohort.used & (labels < 0))
    if len(waiting) < least:
        return labels
    # Sorted: the unions do not depend on the order of the groups.
    records = [each.released[waiting] for each in cohort.columns]
    waiting = waiting[order_records(records, cohort.sizes[waiting])]
    columns = [each.column for each in cohort.columns]
    points = embed_records(columns, [each.released[waiting] for each in cohort.columns])
    labels[waiting] = len(known.released) + form_groups(points, least)
    return labels


def _union_record(cohort: Cohort, pinned: PinnedColumn, groups: IntArray, least: int) -> float:
    """Return the middle one of the groups' records, each counted once for each of its persons.

    Of levels the commonest.
    """
    released = pinned.released
    groups = groups[~np.isnan(released[groups])]
    if len(groups) < least:
        return float("nan")
    everyone = cohort.used & ~np.isnan(released)
    own = np.repeat(released[groups], cohort.sizes[groups])
    if pinned.column.n_levels is not None:
        counts = _count_levels(own, pinned)
        of_all = _count_levels(np.repeat(released[everyone], cohort.sizes[everyone]), pinned)
        return float(np.lexsort((-of_all, -counts))[0])
    own.sort()
    middles = own[[(len(own) - 1) // 2, len(own) // 2]]
    centre = weighted_mean(released[everyone], cohort.sizes[everyone])
    return float(choose_nearer(middles[None], centre)[0])


def _count_levels(levels: FloatArray, pinned: PinnedColumn) -> IntArray:
    return np.bincount(levels.astype(np.int64), minlength=pinned.column.n_levels or 0)
