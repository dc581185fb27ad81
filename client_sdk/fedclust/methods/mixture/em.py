"""The two steps of EM, over rows or artificial persons."""

from __future__ import annotations

import numpy as np

from fedclust.methods.mixture.classes import NUMBER, Classes, column_kinds, log_densities, posterior
from fedclust.methods.mixture.messages import Config, Weighted
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.schema.run_config import RunConfig

#: With protection, so many further persons with the overall share of an answer count in each class:
#: few records leave the shares of rare answers to chance.
_PRIOR = 50.0
#: A variance is at least this, also with ``reg_covar: 0``: it is divided by.
_LEAST_VARIANCE = 1e-12


def expect(X: FloatArray, sizes: FloatArray, classes: Classes, config: RunConfig) -> Weighted:
    """Do an E step over rows (n, d), scaled, that count as so many persons (n,)."""
    kinds = column_kinds(config.columns)
    densities = log_densities(X, classes, kinds, config.space)
    probabilities, logs = posterior(densities, classes.proportions)
    weights = sizes[:, None] * probabilities
    offsets, squares = weighted_sums(X, weights, classes.means, kinds)
    uncertain = probabilities * np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
    return Weighted(
        totals=weights.sum(axis=0),
        offsets=offsets,
        squares=squares,
        log_likelihood=float(sizes @ logs),
        entropy=-float(sizes @ uncertain.sum(axis=1)),
    )


def weighted_sums(
    X: FloatArray, weights: FloatArray, means: FloatArray, kinds: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return weighted sums (K, d) of differences from the means, and of their squares.

    Sums of differences keep digits that sums of points far from the origin lose.
    """
    offsets, squares = np.zeros(means.shape), np.zeros(means.shape)
    for k in range(len(means)):
        apart = X - means[k]
        offsets[k] = weights[:, k] @ apart
        squares[k] = weights[:, k] @ apart**2
    return offsets, np.where(kinds == NUMBER, squares, 0.0)


def maximize(
    classes: Classes,
    totals: FloatArray,
    offsets: FloatArray,
    squares: FloatArray,
    config: RunConfig[Config],
) -> Classes:
    """Do an M step: offsets and squares (K, d) are from ``classes.means``.

    A class that nobody belongs to keeps its mean and variances.
    """
    persons = totals[:, None]
    some = persons > np.finfo(np.float64).tiny
    shift = offsets / np.where(some, persons, 1.0)
    spread = squares / np.where(some, persons, 1.0) - shift**2
    variances = np.maximum(spread, 0.0) + config.options.reg_covar
    kinds = column_kinds(config.columns)
    numbers = some & (kinds == NUMBER)
    means = np.where(some, classes.means + shift, classes.means)
    if config.policy.protection != "none":
        overall = totals @ means / totals.sum()
        smoothed = (persons * means + _PRIOR * overall) / (persons + _PRIOR)
        means = np.where(kinds == NUMBER, means, smoothed)
    return Classes(
        proportions=totals / totals.sum(),
        means=means,
        variances=np.where(numbers, np.maximum(variances, _LEAST_VARIANCE), classes.variances),
    )
