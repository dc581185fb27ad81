"""What points spent on outcomes let anybody learn, who knows everything else.

Counts get Gaussian noise of variance 250 / points, and another outcome of one person moves two
cells by one. That is a zero-concentrated privacy loss of rho = points / 250: as one Gaussian number
of variance 1 whose mean moves by mu = sqrt(2 rho).
"""

import math

from fedclust.schema.feature import POINTS_TIMES_VARIANCE

#: With this chance the bound of :func:`epsilon` may fail.
DELTA = 1e-5


def noise_sd(points: int) -> float:
    """Return the standard deviation of the noise of a question.

    Examples
    --------
    >>> [round(noise_sd(points), 1) for points in (10, 50, 100)]
    [5.0, 2.2, 1.6]
    """
    return math.sqrt(POINTS_TIMES_VARIANCE / points)


def right_guesses(points: int) -> float:
    """Return the share of yes/no outcomes that a guess gets right, .5 without any answer.

    Both answers are equally likely before, and everything but this outcome is known.

    Examples
    --------
    >>> [round(right_guesses(points), 3) for points in (0, 10, 100, 400)]
    [0.5, 0.556, 0.673, 0.814]
    """
    return _normal(_shift(points) / 2)


def guesses(points: int) -> int:
    """Return how many of 100 yes/no outcomes :func:`right_guesses` gets right.

    Examples
    --------
    >>> [guesses(points) for points in (0, 10, 25, 100)]
    [50, 56, 59, 67]
    """
    return round(100 * right_guesses(points))


def epsilon(points: int) -> float:
    """Return epsilon at :data:`DELTA` by the Gaussian trade-off.

    Examples
    --------
    >>> [round(epsilon(points), 2) for points in (0, 25, 100, 400)]
    [0.0, 1.76, 3.85, 8.72]
    """
    from scipy.optimize import brentq

    mu = _shift(points)
    # At the upper end the first term of delta is below DELTA by itself.
    ends = (0.0, mu * (mu / 2 + 5.0))
    return float(brentq(lambda given: _delta(mu, given) - DELTA, *ends)) if mu else 0.0


def _shift(points: int) -> float:
    return math.sqrt(2 * points / POINTS_TIMES_VARIANCE)


def _delta(mu: float, given: float) -> float:
    """Return delta at an epsilon: Balle and Wang 2018, theorem 8."""
    # Imported here: it takes a third of the time of `import fedclust`.
    from scipy.special import log_ndtr

    tail = float(log_ndtr(-mu / 2 - given / mu))
    return _normal(mu / 2 - given / mu) - math.exp(given + tail)


def _normal(x: float) -> float:
    """Return the distribution function of the standard normal distribution."""
    return math.erfc(-x / math.sqrt(2)) / 2
