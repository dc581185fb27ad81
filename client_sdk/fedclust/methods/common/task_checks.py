"""Checks at a site that a task asks for no more than the definition says."""

from __future__ import annotations

from fedclust.protection.message_checks import check_shape
from fedclust.schema.errors import RuleViolation
from fedclust.schema.options import MAX_FOUND_CLUSTERS
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import CentroidTask


def refuse_dissimilarity(config: RunConfig) -> None:
    """Raise RuleViolation unless the session's dissimilarity is Euclidean: ``variant: paper``."""
    if config.policy.dissimilarity != "euclidean":
        raise RuleViolation(
            "variant",
            "variant: paper is Euclidean, as published; variant: default takes "
            f"{config.policy.dissimilarity}",
            "/variant",
        )


def check_centroids(task: CentroidTask, config: RunConfig) -> None:
    """Check centroids (..., K, d), and their mask if they have one, that a task brings.

    Raises
    ------
    RuleViolation
        There are no centroids, or more than the definition allows, or they have other columns, or a
        mask without ``missing: mask``.
    """
    shape, most = task.centroids.shape, _max_centroids(config)
    if 0 in shape:
        raise RuleViolation("task", "a task names at least one centroid", "/parameters/centroids")
    if shape[-2] > most:
        message = f"the definition provides for {most} clusters"
        raise RuleViolation("task", message, "/parameters/centroids")
    check_shape(task.centroids, (*shape[:-1], len(config.columns)), "/parameters/centroids")
    mask = getattr(task, "mask", None)
    if mask is not None:
        check_shape(mask, shape, "/parameters/mask")
        if not mask.all() and config.policy.missing != "mask":
            message = "no site lacks features in this session"
            raise RuleViolation("task", message, "/parameters/mask")


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
