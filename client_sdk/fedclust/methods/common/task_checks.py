"""Checks at a site that a task asks for no more than the definition says."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.options import MAX_FOUND_CLUSTERS
from fedclust.schema.run_config import RunConfig


def refuse_dissimilarity(config: RunConfig) -> None:
    """Raise RuleViolation unless the session's dissimilarity is Euclidean: ``variant: paper``."""
    if config.policy.dissimilarity != "euclidean":
        raise RuleViolation(
            "variant",
            "variant: paper is Euclidean, as published; variant: default takes "
            f"{config.policy.dissimilarity}",
            "/variant",
        )


def check_expected_task(task: Model, expected: Model) -> None:
    """Raise RuleViolation if a task for local cells differs from the definition's."""
    if task != expected:
        raise RuleViolation(
            "task", "the task asks for other cells than the definition", "/parameters"
        )


def check_centroids(
    centroids: NDArray[np.float64], mask: NDArray[np.bool_] | None, config: RunConfig
) -> None:
    """Check centroids (K, d) and their mask (K, d) that a task brings.

    Raises
    ------
    RuleViolation
        There are more centroids than the definition allows, or a mask without ``missing: mask``.
    """
    most = _max_centroids(config)
    if len(centroids) > most:
        raise RuleViolation(
            "task", f"the definition provides for {most} clusters", "/parameters/centroids"
        )
    if mask is not None and not mask.all() and config.policy.missing != "mask":
        raise RuleViolation("task", "no site lacks features in this session", "/parameters/mask")


def _max_centroids(config: RunConfig) -> int:
    """Return the most centroids of a session.

    With ``missing: mask`` the features may fall into parts that no site connects, at most one part
    for each feature, and each part may have K centroids. ``MAX_FOUND_CLUSTERS`` in all if the
    method chooses K.
    """
    n_clusters = config.options.n_clusters
    if n_clusters is None:
        return MAX_FOUND_CLUSTERS
    if not isinstance(n_clusters, int):
        raise ValueError("a sweep checks each of its numbers of clusters by itself")
    parts = len(config.features) if config.policy.missing == "mask" else 1
    return n_clusters * parts
