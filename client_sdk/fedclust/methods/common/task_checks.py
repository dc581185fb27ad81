"""Checks of tasks at a site: no more than the definition provides for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.schema.errors import RuleViolation
from fedclust.schema.options import MAX_FOUND_CLUSTERS
from fedclust.schema.run_config import RunConfig

FloatArray = NDArray[np.float64]


def check_centroids(
    centroids: FloatArray, mask: NDArray[np.bool_] | None, config: RunConfig
) -> None:
    """Refuse more centroids than the definition provides for, and a mask where none is needed."""
    most = most_centroids(config)
    if len(centroids) > most:
        raise RuleViolation(
            "task", f"the definition provides for {most} clusters", "/parameters/centroids"
        )
    if mask is not None and not mask.all() and config.policy.missing != "mask":
        raise RuleViolation("task", "no site lacks features in this session", "/parameters/mask")


def most_centroids(config: RunConfig) -> int:
    """Return the most centroids of a session.

    With ``missing: mask`` each part of the features that no site connects may have K, so there
    are at most as many parts as features. Where the method chooses K, it looks for no more than
    ``MAX_FOUND_CLUSTERS`` in all parts together.
    """
    wanted = config.options.n_clusters
    if wanted is None:
        return MAX_FOUND_CLUSTERS
    if not isinstance(wanted, int):
        raise ValueError("a sweep checks each of its numbers of clusters by itself")
    parts = len(config.features) if config.policy.missing == "mask" else 1
    return wanted * parts
