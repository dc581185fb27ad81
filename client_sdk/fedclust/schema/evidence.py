"""What a result says of how far its clusters can be trusted."""

from __future__ import annotations

from fedclust.numeric.arrays import FloatMatrix, FloatVector
from fedclust.schema.model import Model


class Stability(Model):
    """How far models of resampled data agree with the clusters.

    Each of ``n_models`` models clusters a bootstrap sample: sites drawn with replacement, and
    persons drawn with replacement within them. See ``rounds.stability``.

    Attributes
    ----------
    n_models : int
    jaccard : (K,) float64
        For each cluster, the mean over the models of the largest Jaccard index with one of the
        model's clusters (Hennig, "Cluster-wise assessment of cluster stability", 2007).
    recovered, dissolved : (K,) float64
        The share of models in which that index is at least .75, and below .5.
    consensus : (K, K) float64
        The probability that a model puts two persons into one cluster, by their clusters: one of
        cluster k and one of cluster l.
    """

    n_models: int
    jaccard: FloatVector
    recovered: FloatVector
    dissolved: FloatVector
    consensus: FloatMatrix


class CloudComparison(Model):
    """How clear the clusters of one K are, compared with pieces of one cloud without clusters.

    See ``rounds.reference``.

    Attributes
    ----------
    n_draws : int
        Draws of the cloud; 0 where nothing was judged.
    p : float or None
        How often a cloud of this shape gives clusters as clear, rounded to two digits. None where
        it was not judged.
    gap, gap_error : float or None
        By how much the log of the inertia is lower than in the cloud, and its standard error.
    cluster_p : (K,) float64 or None
        The same for how far each cluster lies from its nearest neighbour. None where ``p`` is
        above .05, and where the session's clusters are not those that the coordinator finds.
    not_judged : str or None
        A sentence: why there is no ``p``, or no ``cluster_p`` though ``p`` is at most .05.
    """

    n_draws: int
    p: float | None = None
    gap: float | None = None
    gap_error: float | None = None
    cluster_p: FloatVector | None = None
    not_judged: str | None = None


class SiteDifferences(Model):
    """How sites differ from each other in columns and clusters.

    Attributes
    ----------
    columns : dict of site to tuple of str, or None
        Columns that a site seems to code otherwise than the others, of the sites that have any; see
        ``rounds.column_differences``. Each site sees its own alone. None where columns were not
        compared: it takes at least ``min_sites`` other sites, and at least three.
    cramers_v : float or None
        How well the site predicts the cluster of a group, from 0 to 1, with Bergsma's correction of
        bias. None where groups are too few to tell.
    """

    columns: dict[str, tuple[str, ...]] | None = None
    cramers_v: float | None = None

    def of_sites(self, names: frozenset[str]) -> SiteDifferences:
        """Return what may be shown to someone who may see these sites alone."""
        if self.columns is None:
            return self
        own = {site: each for site, each in self.columns.items() if site in names}
        return self.model_copy(update={"columns": own})
