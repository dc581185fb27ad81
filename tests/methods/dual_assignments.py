"""Sessions of `dual` whose rows are points, and what its sites tell of a labelling of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.rounds import Plan
from fedclust.schema.feature import Feature
from fedclust.schema.run_config import Policy
from fedclust_dual import METHOD
from fedclust_dual.config import Config
from fedclust_dual.multiplier_update import SiteAssignment
from support.driven import data_of

FloatArray = NDArray[np.float64]
Sites = Mapping[str, FloatArray]
#: Every row is a point: what is looked at are bounds.
OPEN = {"protection": "none", "min_sites": 1, "scaling": "none", "missing": "drop"}
OPEN |= {"max_rounds": 1_000}


def plan_for(
    sites: Sites,
    *,
    policy: Mapping[str, Any] | None = None,
    box: tuple[float, float] = (-20.0, 20.0),
    **options: Any,
) -> Plan:
    d = next(iter(sites.values())).shape[1]
    features = tuple(Feature(name=f"x{j}", lower=box[0], upper=box[1]) for j in range(d))
    config = Config(**{"n_clusters": 2, "evaluate": False, **options})
    policy = {**OPEN, **(policy or {})}
    return Plan(METHOD, config, features, Policy(**policy), seed=0)


def points_of(plan: Plan, sites: Sites) -> tuple[FloatArray, Any]:
    """Return all sites' points (m, d) and their sizes (m,)."""
    own = [data_of(plan, sites[site]) for site in sorted(sites)]
    return np.concatenate([each.X for each in own]), np.concatenate([each.sizes for each in own])


def assignment_of(rows: FloatArray, labels: NDArray[np.int64], n_clusters: int) -> SiteAssignment:
    member = labels[:, None] == np.arange(n_clusters)
    sums, square = member.T.astype(float) @ rows, float((rows**2).sum())
    return SiteAssignment(counts=member.sum(axis=0), sums=sums, square=square)
