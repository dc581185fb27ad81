"""What a paper's methods section says of a session of fkm."""

from __future__ import annotations

from fedclust.methods.common.description import counted, local_starts
from fedclust.methods.fkm.config import DefaultConfig, Variants


def describe(options: Variants) -> str:
    """Return the sentences; see ``Method.describe``."""
    if isinstance(options, DefaultConfig):
        return (
            "In its default variant, each site first divided its own points into at most K cells "
            f"by weighted k-means from {local_starts(options.n_init)}. The coordinator clustered "
            "the cells' means, weighted by their persons, from several starts (farthest first, "
            f"k-means++, Ward's agglomeration). Up to {options.candidates} of the best distinct "
            "partitions were candidates, which exact Lloyd steps over all sites improved side by "
            f"side; after every {counted(options.halve_every, 'round')} the worse half was "
            "dropped. The rounds ended when no candidate improved its inertia by more than "
            f"{options.tol:g}, relative, in two successive rounds."
        )
    dropped = (
        "left out the centroids that none of its points was nearest to"
        if options.drop_empty
        else "kept the centroids that none of its points was nearest to"
    )
    weights = "weighted by persons" if options.weighted else "with equal weights"
    persons = "person" if options.drop_below == 1 else "persons"
    return (
        "In the published variant (Algorithm 1), each site drew its first centroids by "
        f"k-means++. In each of {counted(options.rounds, 'round')} the coordinator clustered the "
        f"sites' means, {weights}, by k-means from 10 starts; each site then {dropped}, made one "
        f"k-means iteration from the others, and sent the means of {options.drop_below} "
        f"{persons} or more."
    )
