"""Transfer: would each site have found the clusters alone, and do they hold without it?

What it computes
    **Own clusters.** Each site clusters its own points by k-means into as many clusters as there
    are common ones, and counts its persons by both. Agreement is measured by the adjusted Rand
    index and by Cohen's kappa after matching (``numeric.agreement``).

    **Leave one site out.** The coordinator fits k-means to the cells of all other sites. The site
    counts its persons by that model and by the common clusters.

    **Sites and clusters.** Cramer's V of the sizes of the clusters by site.

    **Columns.** Which site codes a column otherwise: ``engine.column_differences``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedclust.engine.column_differences import FEWEST_OTHERS
from fedclust.methods.common.cluster_sums import check_sizes
from fedclust.methods.common.local_kmeans import local_kmeans, local_restarts
from fedclust.numeric.agreement import (
    adjusted_rand_index,
    cohen_kappa,
    contingency_table,
    cramers_v,
    matched,
)
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.arrays import IntMatrix
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.random import server_rng, site_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.protection.message_checks import check_counts, check_shape
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.points import Points
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Disclosure
from fedclust.schema.transfer import SiteTransfer, Transfer

__all__ = [
    "DISCLOSURES",
    "LocalFit",
    "check_local_fit",
    "left_out_models",
    "left_out_table",
    "local_fit",
    "summarise",
]

#: Random starts of a model without one site, in addition to a farthest-first start.
_RESTARTS = 10


class LocalFit(Model):
    """A site's own clusters against the common ones.

    Attributes
    ----------
    table : (K, K) int64
        Persons by own cluster (rows) and common cluster (columns). A row of zeros stands for each
        cluster that the site did not find.
    """

    table: IntMatrix


DISCLOSURES = (
    Disclosure(
        field="table",
        shape="K x K numbers",
        meaning=(
            "How many of your persons are in each cluster of your own clustering and in each "
            "common cluster."
        ),
        identifies="Sums over whole groups.",
    ),
)


# --- At a site ------------------------------------------------------------------------------------


def local_fit(
    points: Points, labels: IntArray, n_clusters: int, config: RunConfig, seed: int, site: str
) -> LocalFit:
    """Cluster a site's own points, and compare with the common clusters.

    Parameters
    ----------
    points : Points
        Scaled.
    labels : (m,) int64
        The common cluster of each point; -1 for none, which leaves it out.
    n_clusters : int
        K, the number of common clusters.
    config : RunConfig
    seed : int
        The session's.
    site : str
    """
    known = labels >= 0
    kept = Points(points.X[known][:, config.mask], points.sizes[known], points.within[config.mask])
    m, d = kept.X.shape
    n_init = local_restarts(m, d, n_clusters)
    # Round 0 has no other use: the fit is the same wherever the session's last rounds come.
    rng = site_rng(seed, f"{site}/own-{n_clusters}", 0)
    own = nearest_centroid(kept.X, local_kmeans(kept, n_clusters, n_init, rng).means)
    return LocalFit(table=contingency_table(own, labels[known], kept.sizes, n_clusters, n_clusters))


def check_local_fit(payload: LocalFit, counts: IntArray, config: RunConfig) -> None:
    """Check a site's own fit at either end; RuleViolation.

    Parameters
    ----------
    payload : LocalFit
    counts : (K,) int64
        The site's persons in each common cluster, as the evaluation counts them.
    config : RunConfig
    """
    check_table(payload.table, counts, config)


def check_table(
    table: IntArray, counts: IntArray, config: RunConfig, pointer: str = "/table"
) -> None:
    """Refuse a table (K, K) whose columns do not add up to ``counts`` (K,); RuleViolation.

    Each entry counts whole groups: it is 0 or at least p.
    """
    check_shape(table, (len(counts), len(counts)), pointer)
    check_counts(table.reshape(-1), config.p, pointer)
    check_sizes(table.sum(axis=0), config, pointer)
    wrong = np.flatnonzero(table.sum(axis=0) != counts)
    if len(wrong):
        message = f"the persons of cluster {wrong[0]} do not add up to its size"
        raise RuleViolation("table", message, pointer)


def left_out_table(points: Points, labels: IntArray, centroids: FloatArray) -> IntArray:
    """Count persons by the model without this site (rows) and by common cluster: (K, K).

    Parameters
    ----------
    points : Points
        Scaled.
    labels : (m,) int64
        The common cluster of each point; -1 leaves it out.
    centroids : (K, d) float64
        Of the model that was fitted without this site.
    """
    known = labels >= 0
    own = nearest_centroid(points.X[known], centroids)
    n_clusters = len(centroids)
    return contingency_table(own, labels[known], points.sizes[known], n_clusters, n_clusters)


# --- At the coordinator ---------------------------------------------------------------------------


# What a model is fitted to, and how many sites it needs.
def left_out_models(
    means: FloatArray,
    counts: IntArray,
    sites: Sequence[str],
    n_clusters: int,
    min_sites: int,
    seed: int,
) -> dict[str, FloatArray | None]:
    """Fit a model without each site.

    Parameters
    ----------
    means : (m, d) float64
        Of every cell of every site, scaled.
    counts : (m,) int64
        Persons in each cell.
    sites : sequence of str, length m
        The site of each cell.
    n_clusters : int
        K.
    min_sites : int
        A model rests on the cells of at least so many sites.
    seed : int

    Returns
    -------
    dict of site to (K, d) float64 or None
        None where too few other sites remain, or where they have fewer than K distinct cells.
    """
    owners = np.array(sites, dtype=str)
    names = sorted(set(sites))
    models: dict[str, FloatArray | None] = {}
    for site in names:
        rest = (owners != site) & (counts > 0)
        models[site] = None
        if len(set(owners[rest])) < min_sites:
            continue
        rng = server_rng(seed, f"without-{site}-{n_clusters}")
        weights = counts[rest].astype(np.float64)
        found = weighted_kmeans(means[rest], weights, n_clusters, rng, n_restarts=_RESTARTS)
        if len(found) == n_clusters:
            models[site] = found
    return models


def summarise(
    site_sizes: Mapping[str, Sequence[int]],
    own: Mapping[str, IntArray],
    left_out: Mapping[str, IntArray],
    differing: Mapping[str, Sequence[str]] | None,
) -> Transfer:
    """Put together what a result says of each site.

    Parameters
    ----------
    site_sizes : mapping of site to sequence of int, length K
        Persons in each common cluster.
    own, left_out : mapping of site to (K, K) int64
        Tables of :func:`local_fit` and :func:`left_out_table`, of the sites that sent one.
    differing : mapping of site to sequence of str, or None
        The columns that a site codes otherwise; None where the sites were not compared.
    """
    sizes = {site: np.array(each, dtype=np.int64) for site, each in sorted(site_sizes.items())}
    found = {}
    for site, counts in sizes.items():
        if not counts.any():
            continue
        own_table, own_ari, own_kappa = _agreement(own.get(site))
        rest_table, rest_ari, rest_kappa = _agreement(left_out.get(site))
        found[site] = SiteTransfer(
            n_rows=int(counts.sum()),
            own_table=own_table,
            own_ari=own_ari,
            own_kappa=own_kappa,
            left_out_table=rest_table,
            left_out_ari=rest_ari,
            left_out_kappa=rest_kappa,
            differing_columns=tuple((differing or {}).get(site, ())),
        )
    known = len(found) > 1
    return Transfer(
        sites=found,
        cramers_v=cramers_v(np.stack([sizes[site] for site in found])) if known else None,
        compared=differing is not None,
    )


def can_compare_columns(n_sites: int, min_sites: int) -> bool:
    """Return whether so many sites suffice for ``column_differences.differing_columns``."""
    return n_sites > max(min_sites, FEWEST_OTHERS)


def _agreement(table: IntArray | None) -> tuple[IntArray | None, float | None, float | None]:
    """Return a table with its rows at their matched columns' places, its ARI and its kappa."""
    if table is None:
        return None, None, None
    ordered = np.zeros_like(table)
    ordered[matched(table)] = table
    return ordered, adjusted_rand_index(table), cohen_kappa(table)
