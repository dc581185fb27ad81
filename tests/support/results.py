"""Results as they would be, made from the means of their clusters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedclust.result.facts import Facts
from fedclust.schema.result import ClusterProfile, Quality, Result
from fedclust.wire.models import Definition

#: Of the first four columns; of others 1.
DEVIATIONS = (10.0, 20.0, 4.0, 1.0)


def facts_of(means: ArrayLike, names: Sequence[str], **changes: Any) -> Facts:
    """Return what a report says of clusters with these means (K, d), at sites a and b.

    Clusters are of 100 persons each, and centroids are the means; ``changes`` are of the result.
    Columns with at most four names have :data:`DEVIATIONS`, others deviations of 1.
    """
    centroids = np.array(means, dtype=np.float64)
    count, width = centroids.shape
    wide = np.array(DEVIATIONS[:width]) if width == len(DEVIATIONS) else np.ones(width)
    given: dict[str, Any] = {
        "centroids": centroids / wide,
        "centroids_original": centroids,
        "columns": tuple(names),
        "center": np.zeros(width),
        "scale": wide,
        "sizes": (100,) * count,
        "site_sizes": {"a": (60,) * count, "b": (40,) * count},
        "quality": Quality(
            inertia=12.5, simplified_silhouette=0.5, davies_bouldin=0.7, n_rows=100 * count
        ),
        "profile": ClusterProfile(
            known=np.ones((count, width), dtype=np.bool_),
            means=centroids,
            estimated_deviations=np.ones((count, width)),
            overall_means=centroids.mean(axis=0),
            estimated_overall_deviations=wide,
        ),
    }
    body = {
        "name": "study",
        "algorithm": "fkm",
        "method_version": 1,
        "engine_version": 1,
        "config": {"n_clusters": count},
        "seed": 7,
        "features": [{"name": name} for name in names],
        "sites": ["a", "b"],
    }
    return Facts(Result(**{**given, **changes}), Definition.model_validate_json(json.dumps(body)))
