"""What a paper's methods section says of a session of overlap_oneshot."""

from __future__ import annotations

from fedclust.methods.common.description import local_starts
from fedclust.methods.overlap_oneshot.config import Config

_CANNOT_LINK = {
    "auto": "with and without keeping cells of one site apart, whichever gave the better "
    "simplified silhouette",
    "on": "keeping cells of one site apart as long as any others could be merged",
    "off": "whether or not the cells were of one site",
}


def describe(options: Config) -> str:
    """Return the sentences; see ``Method.describe``."""
    most = f"{options.most_cells}" if options.n_clusters is None else "K"
    if options.searches:
        cells = f"as many cells, from 2 to {most}, as gave the best simplified silhouette,"
    elif options.local_clusters is None:
        cells = "at most K cells"
    else:
        cells = f"at most {options.local_clusters} cells"
    moments = "variances" if options.covariance == "diagonal" else "covariance matrix"
    until = (
        "until K were left"
        if options.n_clusters is not None
        else "and the tree of merges was cut where the simplified silhouette was best"
    )
    return (
        f"Each site divided its own points into {cells} by weighted k-means from "
        f"{local_starts(options.n_init)}, in the features that it had, and sent count, mean and "
        f"{moments} of each. The coordinator drew {options.proxies} points from the Gaussian of "
        "each cell. The force between two of these points was one over their distance, over the "
        f"features that both knew, to the power of {options.w:g}; that between two groups of cells "
        "was the mean over their points. The two groups of greatest force were merged repeatedly, "
        f"{_CANNOT_LINK[options.cannot_link]}, {until}."
    )
