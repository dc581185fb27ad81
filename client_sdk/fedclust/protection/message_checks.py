"""Rule: both ends refuse a message with a number that no protected table could give.

The site checks before sending, the coordinator before storing. Each check raises
:class:`RuleViolation`, which names the rule and the first wrong cell or feature, but no value.
"""

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.schema.errors import RuleViolation

#: Relative tolerance of every comparison of floating-point numbers here.
SLACK = 1e-9


def check_shape(array: NDArray[np.generic], shape: tuple[int, ...], pointer: str) -> None:
    """Raise unless an array has the shape that the task requires."""
    if array.shape != shape:
        wanted = " x ".join(str(length) for length in shape)
        raise RuleViolation("shape", f"an array of shape {wanted} is needed here", pointer)


def check_shapes(message: object, at: str = "", **shapes: tuple[int, ...]) -> None:
    """Raise unless a message's arrays of these names have these shapes; ``at`` points to it."""
    for name, shape in shapes.items():
        check_shape(getattr(message, name), shape, f"{at}/{name}")


def check_counts(counts: IntArray, p: int, pointer: str = "/counts") -> None:
    """Raise unless each count is 0 or at least ``p``."""
    wrong = (counts != 0) & (counts < p)
    message = f"the count of cell {{}} must be 0 or at least {p}"
    refuse_first(wrong, "smallest-count", message, pointer)


def check_empty(counts: IntArray, values: FloatArray, pointer: str) -> None:
    """Raise unless the values (K,) or (K, d) of every cell whose count (K,) is 0 are 0."""
    filled = values != 0
    wrong = (counts == 0) & (filled.any(axis=1) if filled.ndim == 2 else filled)
    message = "cell {} holds no rows, so all its numbers must be 0"
    refuse_first(wrong, "empty-cell", message, pointer)


def check_means(
    counts: IntArray,
    means: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    pointer: str = "/means",
) -> None:
    """Raise unless every mean of a non-empty cell lies within its feature's declared bounds.

    Parameters
    ----------
    counts : (K,) or (K, d) int64
    means : (K, d) float64
    lower, upper : (d,) float64
        Bounds in the space of the means; infinite where a feature has none.
    """
    filled = counts > 0 if counts.ndim == 2 else (counts > 0)[:, None]
    message = "cell {}: the mean of feature {} lies outside its declared bounds"
    refuse_first(_outside(means, lower, upper) & filled, "bounds", message, pointer)


def check_costs(
    counts: IntArray, sums: FloatArray, costs: FloatArray, centroids: FloatArray
) -> None:
    """Raise unless every cost is at least what the message's own mean implies.

    The squared distances of n rows to a centroid c sum to M2 + n |mean - c|^2, and M2 >= 0.

    Parameters
    ----------
    counts : (K,) int64
    sums : (K, d) float64
    costs : (K,) float64
    centroids : (K, d) float64
        The costs are squared distances to these.
    """
    n = np.maximum(counts, 1).astype(np.float64)
    means = sums / n[:, None]
    # The difference of two large numbers loses digits: the slack grows with them.
    slack = SLACK * (np.abs(means) + np.abs(centroids))
    gaps = np.maximum(np.abs(means - centroids) - slack, 0.0)
    implied = n * (gaps**2).sum(axis=1)
    wrong = ((counts > 0) & ~(costs >= implied * (1.0 - SLACK))) | ~(costs >= 0)
    message = "the cost of cell {} is negative or lower than its own mean implies"
    refuse_first(wrong, "cost", message, "/costs")


def check_moments(
    observed: IntArray,
    means: FloatArray,
    m2: FloatArray,
    *,
    n: int,
    p: int,
    lower: FloatArray,
    upper: FloatArray,
) -> None:
    """Check the moments of features: a site sends them once, about all its rows.

    Parameters
    ----------
    observed : (d,) int64
        Rows in which each feature was observed: 0 or at least ``p``, at most ``n``.
    means, m2 : (d,) float64
        Mean and sum of squared deviations of each feature; 0 where none was observed.
    n : int
        All rows of the site: at least ``p``.
    lower, upper : (d,) float64
        Bounds in the space of the means; infinite where a feature has none.
    """
    if n < p:
        raise RuleViolation(
            "smallest-count", f"a site sends moments of at least {p} rows or none", "/n"
        )
    check_counts(observed, p, "/observed")
    message = "feature {} is observed in more rows than the site has"
    refuse_first(observed > n, "complement", message, "/observed")
    check_empty(observed, means, "/mean")
    check_empty(observed, m2, "/m2")
    outside = _outside(means, lower, upper) & (observed > 0)
    message = "the mean of feature {} lies outside its declared bounds"
    refuse_first(outside, "bounds", message, "/mean")
    # Values within bounds have a variance of at most (upper - mean)(mean - lower).
    with np.errstate(invalid="ignore"):
        widest = observed * (upper - means) * (means - lower)
        slack = SLACK * np.maximum(1.0, observed * (upper - lower) ** 2)
    widest = np.where(np.isfinite(widest), np.maximum(widest, 0.0) + slack, np.inf)
    message = "the spread of feature {} is negative or wider than its bounds allow"
    refuse_first(~(m2 >= 0) | (m2 > widest), "spread", message, "/m2")


def refuse_first(wrong: BoolArray, rule: str, message: str, pointer: str) -> None:
    """Raise for the first wrong entry (n,) or (n, d); ``message`` has places for where it is."""
    if wrong.any():
        first = np.argwhere(wrong)[0].tolist()
        raise RuleViolation(rule, message.format(*first), "/".join([pointer, *map(str, first)]))


def _outside(means: FloatArray, lower: FloatArray, upper: FloatArray) -> BoolArray:
    """Return which means (..., d) are not finite or lie outside the bounds (d,)."""
    sizes = [np.where(np.isfinite(bound), np.abs(bound), 0.0) for bound in (lower, upper)]
    slack = SLACK * np.maximum(1.0, np.fmax(*sizes))
    return (means < lower - slack) | (means > upper + slack) | ~np.isfinite(means)
