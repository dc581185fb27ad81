"""The classes of a mixture, and how probable persons are in each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.arrays import FloatMatrix, FloatVector
from fedclust.schema.encoding import Column, Space
from fedclust.schema.model import Model

#: Kinds of columns.
NUMBER, YES_NO, LEVEL = 0, 1, 2
#: A probability of a yes or a level counts as at least this: nothing is impossible in a class.
_RAREST = 1e-9
#: A proportion counts as at least this in logarithms.
_LEAST = 1e-300
#: Points at a time: their temporary arrays stay in the cache.
_BLOCK = 4096


class Classes(Model, title="MixtureClasses"):
    """The parameters of a mixture.

    Attributes
    ----------
    proportions : (K,) float64
    means : (K, d) float64
        Scaled: those of yes/no columns and levels become probabilities in own units.
    variances : (K, d) float64
        Scaled; 1 in columns of yes/no and of levels, where it is not used.
    """

    proportions: FloatVector
    means: FloatMatrix
    variances: FloatMatrix


def column_kinds(columns: Sequence[Column]) -> IntArray:
    """Return the kind (d,) of each column: ``NUMBER``, ``YES_NO`` or ``LEVEL``."""
    kinds = [
        NUMBER if column.kind == "numeric" else YES_NO if column.block is None else LEVEL
        for column in columns
    ]
    return np.array(kinds, dtype=np.int64)


def log_densities(X: FloatArray, classes: Classes, kinds: IntArray, space: Space) -> FloatArray:
    """Return the logarithm (m, K) of the density of each row in each class.

    Parameters
    ----------
    X : (m, d) float64
        Scaled.
    classes : Classes
    kinds : (d,) int64
    space : Space
    """
    found = np.empty((len(X), len(classes.means)))
    numbers, shares = kinds == NUMBER, kinds != NUMBER
    means, variances = classes.means[:, numbers], classes.variances[:, numbers]
    constants = -0.5 * np.log(2.0 * np.pi * variances).sum(axis=1)
    yes, no = _log_probabilities(classes.means, kinds, space)
    for begin in range(0, len(X), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        rows = X[block, numbers]
        for k in range(len(means)):
            squares = (rows - means[k]) ** 2
            found[block, k] = constants[k] - 0.5 * (squares / variances[k]).sum(axis=1)
        if shares.any():
            own = np.clip(space.to_original(X[block])[:, shares], 0.0, 1.0)
            found[block] += own @ (yes - no).T + no.sum(axis=1)
    return found


def _log_probabilities(
    means: FloatArray, kinds: IntArray, space: Space
) -> tuple[FloatArray, FloatArray]:
    """Return logarithms of the probabilities of yes and of no, (K, s) each; 0 for no level.

    That a person does not have a level says nothing beyond which level the person has.
    """
    shares = kinds != NUMBER
    probabilities = space.to_original(means)[:, shares]
    yes = np.log(np.clip(probabilities, _RAREST, 1.0))
    no = np.log(np.clip(1.0 - probabilities, _RAREST, 1.0))
    return yes, np.where(kinds[shares] == YES_NO, no, 0.0)


def posterior(densities: FloatArray, proportions: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the classes' probabilities (m, K), and the logarithm (m,) of the mixture's density.

    Parameters
    ----------
    densities : (m, K) float64
        Of :func:`log_densities`.
    proportions : (K,) float64
    """
    joint = densities + np.log(np.maximum(proportions, _LEAST))
    highest = joint.max(axis=1)
    ratios = np.exp(joint - highest[:, None])
    totals = ratios.sum(axis=1)
    return ratios / totals[:, None], highest + np.log(totals)
