"""Centroids of the definition to start from, in place of the sites' cells."""

from typing import Literal

import numpy as np

from fedclust.methods.common.options import Restarts, SweptOptions
from fedclust.numeric.array_types import FloatArray
from fedclust.numeric.arrays import FloatMatrix
from fedclust.protection.message_checks import check_means, check_shapes
from fedclust.schema.encoding import transformed
from fedclust.schema.errors import RuleViolation
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import centroid_rule, own_bounds


class StartOptions(SweptOptions):
    """The options of a method that starts from the sites' cells or from given centroids.

    Attributes
    ----------
    start : {"cells", "given"}
        Where the first centroids come from: the sites' cells, or the option ``centroids``.
    centroids : (K, d) float64 or None
        The first centroids in the features' own units: a list of K lists with a number for each
        column. A column is a feature, or a level of one. Only with ``start: given``.
    n_init : int
        Restarts of each site's local k-means.
    """

    start: Literal["cells", "given"] = "cells"
    centroids: FloatMatrix | None = None
    n_init: Restarts = 3


def check_given_centroids(config: RunConfig[StartOptions]) -> None:
    """Raise RuleViolation if ``centroids`` do not match ``start`` or the features."""
    options = config.options
    if options.start == "cells":
        if options.centroids is not None:
            raise RuleViolation(
                "start", "centroids are only for start: given; leave them out", "/centroids"
            )
        return
    if options.centroids is None:
        raise RuleViolation("start", "start: given needs centroids", "/centroids")
    check_shapes(options, centroids=(options.k, len(config.columns)))
    check_means(
        np.ones(options.k, dtype=np.int64),
        transformed(config.columns, options.centroids),
        *own_bounds(config.columns),
        "/centroids",
    )


def given_centroids(config: RunConfig[StartOptions]) -> FloatArray | None:
    """Return the definition's initial centroids (K, d), scaled; None with ``start: cells``."""
    given = config.options.centroids
    if given is None:
        return None
    scaled = config.space.to_scaled(transformed(config.columns, given))
    return centroid_rule(config)(scaled)
