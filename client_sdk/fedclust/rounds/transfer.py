"""Transfer: would each site have found the clusters alone, and do they hold without it?

What it computes
    The first two only with ``protection: none``.

    **Own clusters.** Each site clusters its own points by k-means into as many clusters as there
    are common ones, and counts its persons by both. Agreement is measured by the adjusted Rand
    index and by Cohen's kappa after matching (``numeric.agreement``).

    **Leave one site out.** The coordinator fits k-means to the cells of all other sites. The site
    counts its persons by that model and by the common clusters.

    **Sites and clusters.** Cramer's V of the groups by cluster and site. The persons of a group go
    together: counted one by one they make sites seem to differ where they do not.

    **Columns.** Which site codes a column otherwise: ``rounds.column_differences``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedclust.methods.common.kmeans_rounds import Cells
from fedclust.numeric.agreement import adjusted_rand_index, cohen_kappa, cramers_v, matched
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.modes import CentroidRule, keep_means
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.rounds.record_cells import PooledCells
from fedclust.schema.evidence import SiteTransfer, Transfer
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import binary_columns

#: Random starts of a model without one site, in addition to a farthest-first start.
_RESTARTS = 10


def left_out_models(
    cells: PooledCells,
    n_clusters: int,
    *,
    min_sites: int,
    seed: int,
    rule: CentroidRule = keep_means,
) -> list[FloatArray | None]:
    """Fit a model without each site.

    Parameters
    ----------
    cells : PooledCells
    n_clusters : int
        K.
    min_sites : int
        A model rests on the cells of at least so many sites.
    seed : int
    rule : CentroidRule

    Returns
    -------
    list of (K, d) float64 or None
        One for each site. None where too few other sites remain, or where these have fewer than K
        distinct cells.
    """
    models: list[FloatArray | None] = []
    means, sites, weights = cells.means, cells.sites, cells.counts.astype(np.float64)
    for site in range(int(sites.max(initial=-1)) + 1):
        rest = sites != site
        found = None
        if len(np.unique(sites[rest])) >= min_sites:
            rng = server_rng(seed, f"without-{site}-of-{n_clusters}")
            found = weighted_kmeans(means[rest], weights[rest], n_clusters, rng, _RESTARTS, rule)
        models.append(None if found is None or len(found) < n_clusters else found)
    return models


def summarise(
    counts: Mapping[str, IntArray],
    groups: Mapping[str, IntArray],
    tables: Mapping[str, IntArray | None],
    cells: PooledCells,
    config: RunConfig,
    seed: int,
) -> Transfer:
    """Return what a result says of each site, before any model without a site is compared.

    Parameters
    ----------
    counts : mapping of site to (K,) int64
        The persons that each site measured in the clusters of one K; sorted by site.
    groups : mapping of site to (K,) int64
        Its groups in these clusters.
    tables : mapping of site to (K, K) int64 or None
        Persons by cluster of the site's own k-means (rows) and by these clusters (columns).
    cells : PooledCells
    config : RunConfig
    seed : int
    """
    # Imported here: a site does not load what only a coordinator computes.
    from fedclust.rounds.column_differences import FEWEST_OTHERS, differing_columns

    differing: dict[str, tuple[int, ...]] = {}
    compared = len(counts) > max(config.policy.min_sites, FEWEST_OTHERS)
    if compared:
        n_clusters = len(next(iter(counts.values())))
        own = {site: cells.sites == cells.names.index(site) for site in counts}
        differing = differing_columns(
            {
                site: Cells(counts=cells.counts[of], means=cells.means[of])
                for site, of in own.items()
            },
            binary_columns(config.columns),
            n_clusters,
            config.policy.min_sites,
            seed,
        )
    sites = {}
    for site, persons in counts.items():
        table, ari, kappa = _agreement(tables[site])
        names = tuple(config.columns[j].name for j in differing.get(site, ()))
        sites[site] = SiteTransfer(
            n_rows=int(persons.sum()),
            own_table=table,
            own_ari=ari,
            own_kappa=kappa,
            differing_columns=names,
        )
    several = len(sites) > 1
    return Transfer(
        sites=sites,
        cramers_v=cramers_v(np.stack(list(groups.values()))) if several else None,
        compared=compared,
    )


def add_left_out(transfer: Transfer, tables: Mapping[str, IntArray]) -> Transfer:
    """Add the comparison with the models without each site.

    Parameters
    ----------
    transfer : Transfer
    tables : mapping of site to (K, K) int64
        Persons by the model's cluster (rows) and common cluster (columns), of the sites that sent
        them.
    """
    sites = dict(transfer.sites)
    for site in sites.keys() & tables.keys():
        table, ari, kappa = _agreement(tables[site])
        update = {"left_out_table": table, "left_out_ari": ari, "left_out_kappa": kappa}
        sites[site] = sites[site].model_copy(update=update)
    return transfer.model_copy(update={"sites": sites})


def _agreement(table: IntArray | None) -> tuple[IntArray | None, float | None, float | None]:
    """Return a table with its rows at their matched columns' places, its ARI and its kappa."""
    if table is None:
        return None, None, None
    ordered = np.zeros_like(table)
    ordered[matched(table)] = table
    return ordered, adjusted_rand_index(table), cohen_kappa(table)
