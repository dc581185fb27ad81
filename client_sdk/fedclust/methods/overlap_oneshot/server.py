"""overlap_oneshot at the coordinator: proxies, forces, and the cut of the merge tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.finalize import no_centroids, raw_result
from fedclust.methods.common.own_features import (
    collect_centroids,
    single_site_feature_warning,
    too_many_groups_warning,
)
from fedclust.methods.common.partial_features import LocalCentroids, sum_groups
from fedclust.methods.overlap_oneshot.agglomeration import (
    MergeTree,
    best_cut,
    build_merge_tree,
    cluster_forces,
)
from fedclust.methods.overlap_oneshot.config import Config
from fedclust.methods.overlap_oneshot.gaussians import draw_proxies
from fedclust.methods.overlap_oneshot.messages import Gaussians, GaussiansTask, gaussians_task
from fedclust.numeric.canonical import tolerant_argmax
from fedclust.numeric.random import server_rng
from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Done, Task, payloads_of


class State(Model):
    """What a session keeps until its only round closes.

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
    """Aggregate the round; contributions are sorted by site."""
    sent = payloads_of(contributions, Gaussians)
    local = collect_centroids(sent, config)
    tree, n_clusters = _choose_tree(state.seed, sent, local, config)
    groups = tree.cut(n_clusters)
    merged = sum_groups(local, groups, int(groups.max()) + 1)
    raw = raw_result(
        merged.means,
        config,
        mask=merged.mask if config.policy.missing == "mask" else None,
        stopped_because="finished",
        warnings=(
            *_forced_merge_warning(tree, n_clusters),
            *too_many_groups_warning(tree.n_roots, n_clusters),
            *single_site_feature_warning(sent, config),
        ),
    )
    mapping = {}
    for number, (site, cells) in enumerate(sent.items()):
        own = np.full(len(cells.counts), -1, dtype=np.int64)
        own[cells.counts > 0] = groups[local.sites == number]
        mapping[site] = tuple(own.tolist())
    return Done(raw.model_copy(update={"mapping": mapping}))


def _choose_tree(
    seed: int, sent: Mapping[str, Gaussians], local: LocalCentroids, config: RunConfig[Config]
) -> tuple[MergeTree, int]:
    """Merge the local clusters (lines 4 to 12); return the best tree and where to cut it."""
    options = config.options
    proxies = [_draw_site_proxies(seed, site, cells, config) for site, cells in sent.items()]
    masks = [config.masks[site] for site in sent]
    forces = cluster_forces(proxies, masks, options.w)
    apart = {"auto": (False, True), "on": (True,), "off": (False,)}[options.cannot_link]
    trees = [build_merge_tree(forces, local.sites if separate else None) for separate in apart]
    if len(trees) == 1 and options.n_clusters is not None:
        return trees[0], options.n_clusters
    variances = np.concatenate([cells.variances[cells.counts > 0] for cells in sent.values()])
    cuts = [best_cut(tree, local, variances, options.n_clusters) for tree in trees]
    best = int(tolerant_argmax([score for _, score in cuts]))
    return trees[best], options.n_clusters or cuts[best][0]


def _draw_site_proxies(
    seed: int, site: str, cells: Gaussians, config: RunConfig[Config]
) -> NDArray[np.float64]:
    """Return the proxies (K_i, M, d) of a site's cells (line 4)."""
    options = config.options
    filled = np.flatnonzero(cells.counts)
    return draw_proxies(
        cells.means[filled],
        cells.variances[filled],
        np.flatnonzero(config.masks[site]),
        options.proxies,
        server_rng(seed, f"overlap_oneshot-proxies-{site}"),
        cells.covariances[filled] if options.covariance == "full" else None,
    )


def _forced_merge_warning(tree: MergeTree, n_clusters: int) -> tuple[str, ...]:
    """Return a warning if the cut merged clusters of one site in spite of ``cannot_link``."""
    forced = tree.forced - (max(n_clusters, tree.n_roots) - tree.n_roots)
    if forced <= 0:
        return ()
    warning = (
        f"{forced} merges put clusters of one site together although cannot_link kept them "
        f"apart: sites have more clusters than {n_clusters}, or what fitted better was taken. "
        "Ask for more clusters, or for fewer local ones."
    )
    return (warning,)


def finish(state: State, config: RunConfig) -> Result:
    """Raise MethodFailure: before its only round closes, the method has no centroids."""
    del state, config
    raise no_centroids()
