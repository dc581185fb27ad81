"""Results as they would be, made from the means of their clusters."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedclust.result.facts import Facts
from fedclust.schema.result import ClusterProfile, Quality, Result
from fedclust.wire.models import Provenance
from support.definitions import definition

#: Of the first four columns; of others 1.
DEVIATIONS = (10.0, 20.0, 4.0, 1.0)
PROVENANCE = Provenance(
    algorithm="fkm",
    method_version=1,
    engine_version=1,
    seed=7,
    definition_sha256="0" * 64,
    server_version="1",
    platform={},
    sites=("a", "b", "c"),
    submissions=(),
)


def profile_of(
    means: ArrayLike, deviations: ArrayLike = 1.0, overall: ArrayLike = 1.0, **changes: Any
) -> ClusterProfile:
    """Return a profile that knows all: means (K, d), their deviations, and those of all persons."""
    values = np.array(means, dtype=np.float64)
    given: dict[str, Any] = {
        "known": np.ones(values.shape, dtype=np.bool_),
        "means": values,
        "estimated_deviations": np.broadcast_to(deviations, values.shape).astype(np.float64),
        "overall_means": values.mean(axis=0),
        "estimated_overall_deviations": np.broadcast_to(overall, values.shape[1:]).astype(float),
    }
    return ClusterProfile(**{**given, **changes})


def result_of(
    means: ArrayLike, deviations: ArrayLike = 1.0, overall: ArrayLike = 1.0, **changes: Any
) -> Result:
    """Return a result whose centroids are these means (K, d), with :func:`profile_of` them."""
    values = np.array(means, dtype=np.float64)
    given: dict[str, Any] = {
        "centroids": values,
        "centroids_original": values,
        "center": np.zeros(values.shape[1]),
        "scale": np.ones(values.shape[1]),
        "profile": None if "profile" in changes else profile_of(values, deviations, overall),
    }
    return Result(**{**given, **changes})


def facts_of(means: ArrayLike, names: Sequence[str], **changes: Any) -> Facts:
    """Return what a report says of clusters with these means (K, d), at sites a and b.

    Clusters are of 100 persons each, and centroids are the means; ``changes`` are of the result.
    Columns with at most four names have :data:`DEVIATIONS`, others deviations of 1.
    """
    values = np.array(means, dtype=np.float64)
    count, width = values.shape
    wide = np.array(DEVIATIONS[:width]) if width == len(DEVIATIONS) else np.ones(width)
    given: dict[str, Any] = {
        "centroids": values / wide,
        "columns": tuple(names),
        "scale": wide,
        "sizes": (100,) * count,
        "site_sizes": {"a": (60,) * count, "b": (40,) * count},
        "quality": Quality(
            inertia=12.5, simplified_silhouette=0.5, davies_bouldin=0.7, n_rows=100 * count
        ),
    }
    declared = definition(*names, name="study", config={"n_clusters": count}, sites=["a", "b"])
    return Facts(result_of(values, 1.0, wide, **{**given, **changes}), declared)


def unprotected(facts: Facts) -> Facts:
    """Return the same facts of a session with ``protection: none``."""
    policy = facts.definition.policy.model_copy(update={"protection": "none"})
    return replace(facts, definition=facts.definition.model_copy(update={"policy": policy}))
