"""overlap_oneshot at the coordinator: proxies, forces, and the cut of the tree of merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.finalize import raw_result
from fedclust.methods.common.own_features import collect_centroids, single_site_feature_warning
from fedclust.methods.common.partial_features import LocalCentroids, merge
from fedclust.methods.overlap_oneshot.agglomeration import best_cut, forces, merge_tree
from fedclust.methods.overlap_oneshot.config import Config
from fedclust.methods.overlap_oneshot.gaussians import proxies
from fedclust.methods.overlap_oneshot.messages import Gaussians, GaussiansTask, gaussians_task
from fedclust.numeric.canonical import tolerant_argmax
from fedclust.numeric.random import server_rng
from fedclust.schema.errors import MethodFailure
from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Done, Task, payloads_of

# --- Aggregation ----------------------------------------------------------------------------------


class State(Model):
    """What a session keeps until its only round has closed.

    Attributes
    ----------
    seed : int
    """

    seed: int


def start(config: RunConfig[Config], seed: int) -> tuple[State, Task[GaussiansTask]]:
    """Return the first state and task."""
    return State(seed=seed), Task("gaussians", gaussians_task(config.options))


def aggregate(
    state: State, contributions: Sequence[Contribution[Gaussians]], config: RunConfig[Config]
) -> Done:
    """Close the round; contributions sorted by site."""
    sent = payloads_of(contributions, Gaussians)
    local = collect_centroids(sent, config)
    groups, warnings = _group(state.seed, sent, local, config)
    merged = merge(local, groups, int(groups.max()) + 1)
    mask = merged.mask if config.policy.missing == "mask" else None
    raw = raw_result(merged.means, config, mask=mask, stopped_because="finished", warnings=warnings)
    mapping = {}
    for number, (site, cells) in enumerate(sent.items()):
        own = np.full(len(cells.counts), -1, dtype=np.int64)
        own[cells.counts > 0] = groups[local.sites == number]
        mapping[site] = tuple(int(group) for group in own)
    return Done(raw.model_copy(update={"mapping": mapping}))


def _group(
    seed: int, sent: Mapping[str, Gaussians], local: LocalCentroids, config: RunConfig[Config]
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the group (m,) of each local cluster (lines 4 to 12), and what should be known."""
    options = config.options
    drawn = [_drawn(seed, site, cells, config) for site, cells in sent.items()]
    masks = [config.masks[site] for site in sent]
    between = forces(drawn, masks, options.w)
    apart = {"auto": (False, True), "on": (True,), "off": (False,)}[options.cannot_link]
    trees = [merge_tree(between, local.sites if separate else None) for separate in apart]
    if len(trees) > 1 or options.n_clusters is None:
        variances = np.concatenate([cells.variances[cells.counts > 0] for cells in sent.values()])
        cuts = [best_cut(tree, local, variances, options.n_clusters) for tree in trees]
        # The first of equally good ones.
        best = int(tolerant_argmax([score for _, score in cuts]))
        tree, n_clusters = trees[best], options.n_clusters or cuts[best][0]
    else:
        tree, n_clusters = trees[0], options.n_clusters
    groups = tree.cut(n_clusters)
    warnings = []
    forced = tree.forced - (max(n_clusters, tree.n_roots) - tree.n_roots)
    if forced > 0:
        warnings.append(
            f"{forced} merges put clusters of one site together although cannot_link kept them "
            f"apart: sites have more clusters than {n_clusters}, or what fitted better was taken. "
            "Ask for more clusters, or for fewer local ones."
        )
    if tree.n_roots > n_clusters:
        warnings.append(
            f"{tree.n_roots} groups remain where {n_clusters} clusters were asked for: they share "
            "no feature, so nothing tells which of them are one."
        )
    return groups, (*warnings, *single_site_feature_warning(sent, config))


def _drawn(
    seed: int, site: str, cells: Gaussians, config: RunConfig[Config]
) -> NDArray[np.float64]:
    """Return the proxies (K_i, M, d) of a site's cells (line 4)."""
    options = config.options
    filled = np.flatnonzero(cells.counts)
    return proxies(
        cells.means[filled],
        cells.variances[filled],
        np.flatnonzero(config.masks[site]),
        options.proxies,
        server_rng(seed, f"overlap_oneshot-proxies-{site}"),
        cells.covariances[filled] if options.covariance == "full" else None,
    )


# --- Convergence ----------------------------------------------------------------------------------


def finish(state: State, config: RunConfig) -> Result:
    """Fail: before its only round has closed, the method has nothing."""
    del state, config
    raise MethodFailure("no_centroids", "no round of the method was closed: raise max_rounds")
