"""Artificial persons around the records of a site's groups.

A record is near to its persons, but they are spread around it: EM on records alone finds classes
that are too tight, and loses those that differ in spread. So a site draws artificial persons
around each record. They come from the records, the groups' sizes and the session's seed alone.
"""

import numpy as np

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.schema.points import Points

#: Artificial persons drawn for each person, each with this part of the weight,
_COPIES = 5
#: up to this number at a site; then fewer with larger weights.
_MOST = 50_000
#: Around at most so many records, spread over the table: each is compared with all others.
_MOST_RECORDS = 5_000
#: So many nearest records say how tight the surroundings of a group are.
_SURROUNDINGS = 3
#: The share of a column's variance within groups where neighbours do not differ in it.
_LEAST_SHARE = 0.05
#: Records that are compared with all others at once.
_BLOCK = 500


def draw_persons(
    points: Points, numbers: BoolArray, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return artificial persons (q, d), scaled, and their weights (q,), which add up to persons.

    Numbers are normal around the record. Their variance is half the mean squared difference
    between neighbouring records of the site, larger where a record's neighbours are farther away.
    Yes/no answers and levels are the record's: answers of neighbours in their place made latent
    classes worse.

    Parameters
    ----------
    points : Points
        Scaled.
    numbers : (d,) bool
        The columns of numbers.
    rng : numpy.random.Generator
    """
    if len(points.X) < 2 or not numbers.any():
        return points.X, points.sizes.astype(np.float64)
    chosen = np.arange(0, len(points.X), -(-len(points.X) // _MOST_RECORDS))
    sizes = points.sizes[chosen]
    a_person = min(float(_COPIES), _MOST / sizes.sum())
    copies = np.maximum((sizes * a_person).astype(np.int64), 1)
    weights = np.repeat(sizes / copies, copies) * (points.n / sizes.sum())
    X = np.repeat(points.X[chosen], copies, axis=0)
    sds = np.repeat(np.sqrt(_variances(points, numbers, chosen)), copies, axis=0)
    X[:, numbers] += sds * rng.standard_normal(sds.shape)
    return X, weights


def _variances(points: Points, numbers: BoolArray, chosen: IntArray) -> FloatArray:
    """Return the variance (q, s) of each column of numbers around each chosen record."""
    sizes, own = points.sizes[chosen], points.X[:, numbers]
    nearest, near = _find_nearest(points.X, chosen)
    within = np.average((own[chosen] - own[nearest]) ** 2, axis=0, weights=sizes) / 2.0
    least = _LEAST_SHARE / (1.0 - _LEAST_SHARE) * own.var(axis=0)
    mean = float(np.average(near, weights=sizes))
    parts = near / mean if mean > 0.0 else np.ones(len(near))
    return np.asarray(parts[:, None] * np.where(within > 0.0, within, least))


def _find_nearest(X: FloatArray, chosen: IntArray) -> tuple[IntArray, FloatArray]:
    """Return each chosen record's nearest other, and the mean squared distance of the nearest."""
    wanted = min(_SURROUNDINGS, len(X) - 1)
    nearest, near = np.empty(len(chosen), dtype=np.int64), np.empty(len(chosen))
    squares = (X**2).sum(axis=1)
    for begin in range(0, len(chosen), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        rows = chosen[block]
        apart = np.maximum(squares + squares[rows, None] - 2.0 * (X[rows] @ X.T), 0.0)
        apart[np.arange(len(rows)), rows] = np.inf
        nearest[block] = apart.argmin(axis=1)
        near[block] = np.partition(apart, wanted - 1, axis=1)[:, :wanted].mean(axis=1)
    return nearest, near
