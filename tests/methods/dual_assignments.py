"""What sites of `dual` tell of a labelling of their rows."""

import numpy as np
from numpy.typing import NDArray

from fedclust_dual.multiplier_update import SiteAssignment


def assignment_of(
    rows: NDArray[np.float64], labels: NDArray[np.int64], n_clusters: int
) -> SiteAssignment:
    member = labels[:, None] == np.arange(n_clusters)
    sums, square = member.T.astype(float) @ rows, float((rows**2).sum())
    return SiteAssignment(counts=member.sum(axis=0), sums=sums, square=square)
