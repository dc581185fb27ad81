"""What a paper's methods section says of a session of lloyd."""

from __future__ import annotations

from fedclust.methods.common.description import local_starts
from fedclust.methods.lloyd.config import Config


def describe(options: Config) -> str:
    """Return the sentences; see ``Method.describe``."""
    if options.centroids is not None:
        rows = (", ".join(f"{value:g}" for value in row) for row in options.centroids.tolist())
        start = (
            "The first centroids were given in the session's definition: "
            f"({'); ('.join(rows)}), in the order and units of the variables."
        )
    else:
        start = (
            "For the first centroids, each site divided its own points into at most K cells by "
            f"weighted k-means from {local_starts(options.n_init)}, and the coordinator clustered "
            "the cells' means, weighted by their persons, from several starts (farthest first, "
            "k-means++, Ward's agglomeration)."
        )
    return (
        f"{start} In each round the sites assigned their points to the nearest centroid, and the "
        "coordinator moved each centroid to the mean of its points at all sites. The rounds ended "
        f"when the inertia improved by at most {options.tol:g}, relative, in two successive "
        "rounds; the best centroids of all rounds were the result."
    )
