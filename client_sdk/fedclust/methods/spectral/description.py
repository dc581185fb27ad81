"""What a paper's methods section says of a session of spectral."""

from __future__ import annotations

from fedclust.methods.spectral.config import LandmarksConfig, SignConfig, Variants


def describe(options: Variants) -> str:
    """Return the sentences; see ``Method.describe``."""
    if isinstance(options, LandmarksConfig):
        neighbours = (
            "the number k from 5 to 25 with the most reliable outcome"
            if options.neighbours is None
            else f"k = {options.neighbours}"
        )
        return (
            f"Each site sent its points, or the means and counts of {options.landmarks} weighted "
            "k-means cells of them if it had more, as landmarks. The coordinator left out "
            "landmarks that were sparser than their neighbours, connected each of the others with "
            f"its k nearest ones in a self-tuning graph ({neighbours}), and clustered them by "
            "k-means among the first K eigenvectors of the graph's Laplacian. A row got the "
            "cluster of the nearest landmark."
        )
    graph = (
        f"a self-tuning graph of {options.neighbours} neighbours"
        if options.gamma is None
        else f"an RBF graph (gamma = {options.gamma:g})"
    )
    if not options.n_anchors:
        aligned = "The eigenvectors of different sites were not aligned."
    else:
        how = "flipped" if isinstance(options, SignConfig) else "rotated (orthogonal Procrustes)"
        aligned = (
            f"The other sites' eigenvectors were {how} to agree with those of a reference site at "
            f"no more than {options.n_anchors} of its anchors."
        )
    return (
        f"Each site computed the first K eigenvectors of {graph} of its own points. {aligned} Each "
        "site clustered its points among the eigenvectors, and the coordinator clustered the "
        "sites' centroids."
    )
