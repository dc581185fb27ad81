"""overlap_oneshot at the coordinator: proxies, forces, and the cut of the tree of merges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.finalize import raw_result
from fedclust.methods.common.own_features import collect_centroids, single_site_feature_warning
from fedclust.methods.common.partial_features import LocalCentroids, merge
from fedclust.methods.overlap_oneshot.agglomeration import best_cut, forces, merge_tree
from fedclust.methods.overlap_oneshot.config import Config
from fedclust.methods.overlap_oneshot.gaussians import proxies
from fedclust.methods.overlap_oneshot.messages import Gaussians, gaussians_task
from fedclust.numeric.canonical import tolerant_argmax
from fedclust.numeric.random import server_rng
from fedclust.schema.errors import MethodFailure
from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Done, Task

# --- Aggregation ----------------------------------------------------------------------------------


class State(Model):
    """What a session keeps until its only round has closed.

    Attributes
    ----------
    seed : int
    """

    seed: int


def start(config: RunConfig, seed: int) -> tuple[State, Task]:
    """Return the first state and task."""
    return State(seed=seed), Task("gaussians", gaussians_task(config.options))


def aggregate(state: State, contributions: Sequence[Contribution], config: RunConfig) -> Done:
    """Close the round; contributions sorted by site."""
    sent = [c for c in contributions if c.payload is not None]
    local = collect_centroids(sent, config)
    groups, warnings = _group(state.seed, sent, local, config)
    merged = merge(local, groups, int(groups.max()) + 1)
    mask = merged.mask if config.policy.missing == "mask" else None
    raw = raw_result(merged.means, config, mask=mask, stopped_because="finished", warnings=warnings)
    mapping = {}
    for number, contribution in enumerate(sent):
        own = np.full(len(contribution.payload.counts), -1, dtype=np.int64)
        own[contribution.payload.counts > 0] = groups[local.sites == number]
        mapping[contribution.site] = tuple(int(group) for group in own)
    return Done(raw.model_copy(update={"mapping": mapping}))


def _group(
    seed: int, sent: Sequence[Contribution], local: LocalCentroids, config: RunConfig
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the group (m,) of each local cluster (lines 4 to 12), and what should be known."""
    options: Config = config.options
    drawn = [_drawn(seed, contribution, config) for contribution in sent]
    masks = [config.masks[contribution.site] for contribution in sent]
    between = forces(drawn, masks, options.w)
    apart = {"auto": (False, True), "on": (True,), "off": (False,)}[options.cannot_link]
    trees = [merge_tree(between, local.sites if separate else None) for separate in apart]
    if len(trees) > 1 or options.n_clusters is None:
        variances = np.concatenate([c.payload.variances[c.payload.counts > 0] for c in sent])
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


def _drawn(seed: int, contribution: Contribution, config: RunConfig) -> NDArray[np.float64]:
    """Return the proxies (K_i, M, d) of a site's cells (line 4)."""
    options: Config = config.options
    payload: Gaussians = contribution.payload
    filled = np.flatnonzero(payload.counts)
    return proxies(
        payload.means[filled],
        payload.variances[filled],
        np.flatnonzero(config.masks[contribution.site]),
        options.proxies,
        server_rng(seed, f"overlap_oneshot-proxies-{contribution.site}"),
        payload.covariances[filled] if options.covariance == "full" else None,
    )


# --- Convergence ----------------------------------------------------------------------------------


def finish(state: State, config: RunConfig) -> Result:
    """Fail: before its only round has closed, the method has nothing."""
    del state, config
    raise MethodFailure("no_centroids", "no round of the method was closed: raise max_rounds")
