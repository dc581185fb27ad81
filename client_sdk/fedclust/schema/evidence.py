"""What a result says of how far its clusters can be trusted."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedclust.numeric.arrays import FloatMatrix, FloatVector, IntMatrix
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


class SiteTransfer(Model):
    """How far one site's persons bear out the common clusters.

    Tables, indices and kappas are None with protection, where sites do not send them.

    Attributes
    ----------
    n_rows : int
        Persons.
    own_table : (K, K) int64 or None
        Persons by cluster of the site's own k-means (rows) and common cluster (columns). Each row
        stands at the place of the common cluster that it was matched with; a row of zeros is a
        cluster that the site did not find.
    own_ari, own_kappa : float or None
        Agreement of the two (``numeric.agreement``).
    left_out_table : (K, K) int64 or None
        Persons by cluster of the model that was fitted without this site (rows, matched in the same
        way) and common cluster. None where fewer than ``min_sites`` other sites remain, or where
        the site did not answer the round.
    left_out_ari, left_out_kappa : float or None
    differing_columns : tuple of str
        Columns that the site seems to code otherwise than the other sites.
    """

    n_rows: int
    own_table: IntMatrix | None = None
    own_ari: float | None = None
    own_kappa: float | None = None
    left_out_table: IntMatrix | None = None
    left_out_ari: float | None = None
    left_out_kappa: float | None = None
    differing_columns: tuple[str, ...] = ()

    @property
    def found_alone(self) -> Literal["yes", "partly", "no"] | None:
        """Whether the site would have found the common clusters alone; None where not known.

        By its own adjusted Rand index, in the bands of Steinley, "Properties of the Hubert-Arabie
        adjusted Rand index", Psychological Methods 9, 2004: from .8 good, below .65 poor.
        """
        if self.own_ari is None:
            return None
        return "yes" if self.own_ari >= 0.8 else "partly" if self.own_ari >= 0.65 else "no"


class Transfer(Model):
    """Whether the clusters hold at each site; see ``rounds.transfer``.

    Attributes
    ----------
    sites : dict of site to SiteTransfer
        Sites with persons. Each site sees its own alone.
    cramers_v : float or None
        How well the site predicts the cluster of a group, from 0 to 1, with Bergsma's correction of
        bias.
    compared : bool
        Whether the sites' columns were compared: it takes at least ``min_sites`` other sites, and
        at least three.
    """

    sites: dict[str, SiteTransfer] = Field(default_factory=dict)
    cramers_v: float | None = None
    compared: bool = False

    def of_sites(self, names: frozenset[str]) -> Transfer:
        """Return what may be shown to someone who may see these sites alone."""
        own = {site: each for site, each in self.sites.items() if site in names}
        return self.model_copy(update={"sites": own})
