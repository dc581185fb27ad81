"""Rule: a larger p is served by unions of whole groups, formed once, from records alone.

For p' a union has at least p'/p groups. It releases a column if so many of its groups do, and it
decides once the persons of all its groups were in a file with the column. Then its record never
changes.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import FloatArray
from fedclust.numeric.microaggregation import form_groups
from fedclust.protection.cohort import Cohort, PinnedColumn, Unions, pad
from fedclust.protection.columns import choose_nearer, group_members, weighted_mean
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
    unions = [members[members >= 0] for members in group_members(labels, n_unions)]
    for place, pinned in enumerate(cohort.columns):
        of_all = _all_records(cohort, pinned)
        for union, groups in enumerate(unions):
            if len(groups) and not decided[union, place] and pinned.complete[groups].all():
                decided[union, place] = True
                releasing = groups[~np.isnan(pinned.released[groups])]
                if len(releasing) >= least:
                    own = np.repeat(pinned.released[releasing], cohort.sizes[releasing])
                    released[union, place] = _union_record(own, pinned, of_all)
    if np.array_equal(labels, known.labels) and np.array_equal(decided, known.decided):
        return cohort
    others = (each for each in cohort.unions if each.p != p)
    return replace(cohort, unions=(*others, Unions(p, labels, released, decided)))


def _label_groups(cohort: Cohort, known: Unions, least: int) -> NDArray[np.int32]:
    """Return the union (m,) of each group; those that wait are united if they are enough."""
    labels = pad(known.labels, len(cohort.sizes), fill=-1)
    waiting = np.flatnonzero(cohort.used & (labels < 0))
    if len(waiting) < least:
        return labels
    # Sorted: the unions do not depend on the order of the groups.
    records = [each.released[waiting] for each in cohort.columns]
    order = order_records(records, cohort.sizes[waiting])
    columns = [each.column for each in cohort.columns]
    points = embed_records(columns, [each[order] for each in records])
    labels[waiting[order]] = len(known.released) + form_groups(points, least)
    return labels


def _all_records(cohort: Cohort, pinned: PinnedColumn) -> FloatArray:
    """Return the mean of all records (1,); of levels the number of persons at each (L,)."""
    everyone = cohort.used & ~np.isnan(pinned.released)
    records, sizes = pinned.released[everyone], cohort.sizes[everyone]
    if pinned.column.n_levels is not None:
        counts = np.bincount(records.astype(np.int64), sizes, pinned.column.n_levels)
        return counts.astype(np.float64)
    return np.array([weighted_mean(records, sizes) if len(sizes) else 0.0])


def _union_record(own: FloatArray, pinned: PinnedColumn, of_all: FloatArray) -> float:
    """Return the middle one of the persons' records (n,), the nearer one to ``of_all``.

    Of levels the commonest; of equally common ones that of most persons of all groups.
    """
    if pinned.column.n_levels is not None:
        counts = np.bincount(own.astype(np.int64), minlength=pinned.column.n_levels)
        return float(np.lexsort((-of_all, -counts))[0])
    own = np.sort(own)
    middles = own[[(len(own) - 1) // 2, len(own) // 2]]
    return float(choose_nearer(middles[None], of_all[0])[0])
