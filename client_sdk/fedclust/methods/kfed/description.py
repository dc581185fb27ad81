"""What a paper's methods section says of a session of kfed."""

from __future__ import annotations

from fedclust.methods.common.description import counted, local_starts
from fedclust.methods.kfed.config import DefaultConfig, Variants

_PROJECTIONS = {
    "auto": "with 32 cells or more among projections on its singular vectors above the noise",
    "on": "among projections on its singular vectors above the noise",
    "off": "without projection",
}


def describe(options: Variants) -> str:
    """Return the sentences; see ``Method.describe``."""
    if options.refine:
        further = f"Then {counted(options.refine, 'exact Lloyd round')} over all sites followed."
    else:
        further = "No Lloyd rounds over all sites followed."
    if isinstance(options, DefaultConfig):
        cells = "8 K" if options.local_clusters is None else f"{options.local_clusters}"
        steps = (
            f"In its default variant, each site divided its own points into at most {cells} cells "
            f"by weighted k-means from {local_starts(options.n_init)}, "
            f"{_PROJECTIONS[options.projection]}. The coordinator clustered the cells' means, "
            "weighted by their persons, from several starts (k-means++, farthest first, Ward's "
            "agglomeration)."
        )
    else:
        cells = "the root of K, rounded up," if options.local_clusters is None else ""
        cells = cells or f"{options.local_clusters}"
        seeded = (
            "seeded by k-means++ in the space of its first singular vectors"
            if options.projection == "on"
            else "seeded by k-means++ without projection"
        )
        lloyd = (
            "Lloyd's algorithm to convergence"
            if options.server_lloyd == "converge"
            else "one Lloyd step"
        )
        steps = (
            "In the published variant (Algorithms 1 and 2), each site divided its own points into "
            f"at most {cells} cells by k-means, {seeded}. The coordinator started from the means "
            "of the first site by name, added the mean farthest from all others until there were "
            f"K, and ran {lloyd} on the means with equal weights."
        )
    labels = (
        "Rows were labelled by the nearest centroid."
        if options.labels == "nearest"
        else "Without Lloyd rounds, a site that took part labelled its rows by the cluster of the "
        "nearest of its own cells; other rows were labelled by the nearest centroid."
    )
    return f"{steps} {further} {labels}"
