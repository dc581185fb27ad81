"""How far two clusterings agree, from their contingency table alone.

A contingency table (K, L) counts persons: ``table[k, l]`` are in cluster k of the first clustering
and in cluster l of the second. Everything here is a function of such tables, and equal to the
measure over all persons or pairs of persons. Persons of one point count as different persons.

References
----------
Hubert & Arabie, "Comparing partitions", Journal of Classification 2, 1985.
Hennig, "Cluster-wise assessment of cluster stability", Computational Statistics & Data Analysis 52,
2007.
Monti, Tamayo, Mesirov & Golub, "Consensus clustering", Machine Learning 52, 2003.
Bergsma, "A bias-correction for Cramér's V and Tschuprow's T", Journal of the Korean Statistical
Society 42, 2013.
"""

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray


def contingency_table(
    rows: IntArray, columns: IntArray, sizes: IntArray, shape: tuple[int, int]
) -> IntArray:
    """Return the contingency table (K, L) of two labellings (m,) of points.

    Parameters
    ----------
    rows, columns : (m,) int64
        The row and the column of each point; -1 in either leaves the point out.
    sizes : (m,) int64
        Persons at each point.
    shape : tuple of int
        (K, L).
    """
    table = np.zeros(shape, dtype=np.int64)
    both = (rows >= 0) & (columns >= 0)
    np.add.at(table, (rows[both], columns[both]), sizes[both])
    return table


def adjusted_rand_index(table: IntArray) -> float:
    """Return the adjusted Rand index of a table (K, L): 1 where both agree, 0 as by chance.

    Hubert & Arabie 1985. 1 where no pair of persons can be judged differently.
    """
    together = float(_n_pairs(table).sum())
    in_rows = float(_n_pairs(table.sum(axis=1)).sum())
    in_columns = float(_n_pairs(table.sum(axis=0)).sum())
    by_chance = in_rows * in_columns / max(float(_n_pairs(table.sum())), 1.0)
    most = (in_rows + in_columns) / 2.0
    return 1.0 if most == by_chance else (together - by_chance) / (most - by_chance)


def jaccard_by_cluster(table: IntArray) -> FloatArray:
    """Return each row cluster's (K,) highest Jaccard similarity with a column cluster.

    Persons in both over persons in either (Hennig 2007). Two row clusters may have the same
    partner. 0 for an empty cluster.
    """
    in_either = table.sum(axis=1)[:, None] + table.sum(axis=0) - table
    similarity = table / np.maximum(in_either, 1)
    return np.asarray(similarity.max(axis=1))


def cramers_v(table: IntArray) -> float:
    """Return Cramér's V of a table (K, L): 0 where rows tell nothing of columns, 1 where all.

    With Bergsma's bias correction: V itself is above 0 by chance alone. With eight clusters and ten
    independent sites of 20 persons it is about .2, which reads like an effect of the site; the
    corrected one is about 0. Empty rows and columns do not count. 0 where fewer than two of either
    are left.
    """
    table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
    n_rows, n_columns = table.shape
    if min(n_rows, n_columns) < 2:
        return 0.0
    total = float(table.sum())
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / total
    squared = float(((table - expected) ** 2 / expected).sum()) / total
    rest = max(total - 1.0, 1.0)
    squared = max(0.0, squared - (n_rows - 1) * (n_columns - 1) / rest)
    least = min(n - (n - 1) ** 2 / rest for n in (n_rows, n_columns)) - 1.0
    return float(np.sqrt(min(squared / least, 1.0))) if least > 0 else 0.0


def consensus(tables: IntArray) -> FloatArray:
    """Return how often persons of two row clusters are put together: (K, K).

    Entry (k, l) is the probability that a model drawn at random puts together a random person of
    cluster k and one of cluster l; on the diagonal, two different persons of cluster k (Monti et
    al. 2003, averaged over clusters). 0 for an empty cluster; 1 on the diagonal for a cluster of
    one person.

    Parameters
    ----------
    tables : (B, K, L) int64
        One table for each model; columns are the model's clusters.
    """
    persons = tables.sum(axis=2).astype(np.float64)
    shares = tables / np.maximum(persons, 1.0)[:, :, None]
    together = shares @ shares.transpose(0, 2, 1)
    own = _n_pairs(tables).sum(axis=2) / np.maximum(_n_pairs(persons), 1.0)
    own[persons == 1.0] = 1.0
    every = np.arange(tables.shape[1])
    together[:, every, every] = own
    return np.asarray(together.mean(axis=0))


def _n_pairs(persons: IntArray | FloatArray) -> FloatArray:
    """Return how many pairs so many persons make."""
    persons = np.asarray(persons, dtype=np.float64)
    return persons * (persons - 1.0) / 2.0
