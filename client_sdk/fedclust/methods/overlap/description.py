"""What a paper's methods section says of a session of overlap."""

from __future__ import annotations

from fedclust.methods.common.description import counted, local_starts
from fedclust.methods.overlap.config import Config

_GROUPINGS = {
    "agglomerative": "by agglomeration, no two cells of one site in a group",
    "A": "by Method A of the paper",
    "B": "by Method B of the paper",
    "auto": "by the paper's Method A or B or by agglomeration, as the shared features allowed",
}


def describe(options: Config) -> str:
    """Return the sentences; see ``Method.describe``."""
    if options.local_clusters == "silhouette":
        cells = "as many cells, from 2 to K, as gave the best simplified silhouette,"
    else:
        cells = f"at most {options.local_clusters or 'K'} cells"
    return (
        f"Each site divided its own points into {cells} by weighted k-means from "
        f"{local_starts(options.n_init)}, in the features that it had. The coordinator grouped the "
        f"cells of all sites {_GROUPINGS[options.meta]}, and merged each group feature by feature, "
        f"weighted by persons. In each of {counted(options.rounds, 'further round')} the sites ran "
        f"{counted(options.local_iterations, 'Lloyd iteration')} from the global centroids, which "
        f"then moved towards the sites' centroids with step size {options.alpha:g}."
    )
