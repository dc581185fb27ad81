"""spectral at the coordinator: the graph of landmarks, or the sites' eigenvectors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.finalize import merge_equal_centroids, raw_result
from fedclust.methods.spectral.client import EIGEN_N_INIT
from fedclust.methods.spectral.config import EigenConfig, LandmarksConfig, Variants
from fedclust.methods.spectral.graph import NEIGHBOURS, Partition, cluster_landmarks, dense
from fedclust.methods.spectral.messages import (
    AnchorPart,
    Anchors,
    AnchorsTask,
    AnyPayload,
    AnyTask,
    Eigen,
    EigenTask,
    Landmarks,
    LandmarksTask,
)
from fedclust.numeric.distances import first_occurrences, nearest_centroid
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.schema.errors import MethodFailure
from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Done, Next, Task, payloads_of

#: Below either, the result says that it may be wrong; see docs/methods/spectral.md for how often
#: the warning is raised where it should be, and where it should not.
_SURE_GAP = 0.9
_SURE_AGREEMENT = 0.7
#: Sites whose clusters do not go to different global ones, from this share on.
_CONFUSED = 0.1

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


# --- Aggregation ----------------------------------------------------------------------------------


class State(Model):
    """What a session keeps between rounds.

    Attributes
    ----------
    phase : {"landmarks", "anchors", "eigen"}
        What the open round asks.
    seed : int
    asked : tuple of str
        Sites that were asked for anchors so far.
    """

    phase: Literal["landmarks", "anchors", "eigen"]
    seed: int
    asked: tuple[str, ...] = ()


def start(config: RunConfig[Variants], seed: int) -> tuple[State, Task[AnyTask]]:
    """Return the first state and task."""
    options = config.options
    if isinstance(options, LandmarksConfig):
        task = LandmarksTask(n_cells=options.landmarks)
        state = State(phase="landmarks", seed=seed)
        return state, Task("landmarks", task)
    if not options.n_anchors:
        return State(phase="eigen", seed=seed), Task("eigen", EigenTask())
    return _ask_reference(State(phase="anchors", seed=seed), config.roster, options)


def _ask_reference(
    state: State, roster: Sequence[str], options: EigenConfig
) -> tuple[State, Task[AnyTask]]:
    """Ask the first site by name that was not asked before."""
    left = [site for site in roster if site not in state.asked]
    if not left:
        raise MethodFailure(
            "no_anchors",
            "no site has two persons near each other, whose mean could be an anchor: invite larger "
            "sites, or use alignment: landmarks",
        )
    parts = {site: AnchorPart(anchors=site == left[0]) for site in roster}
    task = Task("anchors", AnchorsTask(n_anchors=options.n_anchors), per_site=parts)
    return state.model_copy(update={"asked": (*state.asked, left[0])}), task


def aggregate(
    state: State, contributions: Sequence[Contribution[AnyPayload]], config: RunConfig[Variants]
) -> Next[State, AnyTask] | Done:
    """Close a round; contributions sorted by site."""
    options = config.options
    if isinstance(options, LandmarksConfig):
        sent = payloads_of(contributions, Landmarks).values()
        return _by_landmarks(state, sent, config, options)
    if state.phase == "anchors":
        return _with_anchors(state, contributions, config.roster, options)
    return _by_eigenvectors(state, contributions, config, options)


def _by_landmarks(
    state: State,
    sent: Collection[Landmarks],
    config: RunConfig[Variants],
    options: LandmarksConfig,
) -> Done:
    counts = np.concatenate([landmarks.counts for landmarks in sent]).astype(np.float64)
    # -0.0 would be another value to tell points apart by.
    means = np.concatenate([landmarks.means for landmarks in sent]) + 0.0
    points = _graph_points(means, options.n_clusters)
    rng = server_rng(state.seed, "spectral-landmarks")
    found = cluster_landmarks(points, options.n_clusters, NEIGHBOURS, rng, options.neighbours)
    # Landmarks that took no part in the graph count for the cluster that their rows will take.
    places = nearest_centroid(means, points)
    # A landmark of the graph keeps its own cluster, even where rounding makes another one equal.
    own = {point.tobytes(): place for place, point in enumerate(points)}
    places = np.array(
        [own.get(mean.tobytes(), place) for mean, place in zip(means, places, strict=True)]
    )
    centroids = _cluster_means(means, counts, found.labels[places])
    raw = raw_result(
        centroids, config, stopped_because="finished", warnings=_doubts(found)
    ).model_copy(
        update={
            "prototypes": points,
            "prototype_labels": tuple(int(label) for label in found.labels),
            "extra": {
                "neighbours": found.neighbours,
                "eigengap": found.gap,
                "agreement": found.agreement,
            },
        }
    )
    return Done(raw, {"eigengap": found.gap, "agreement": found.agreement})


def _graph_points(means: FloatArray, n_clusters: int) -> FloatArray:
    """Return the distinct landmarks (M, d) of the graph: the dense ones, if more than K are left.

    By value: nothing tells whose they are, and no order of sites is left in the result.
    """
    points = means[first_occurrences(means)]
    points = points[np.lexsort(points.T[::-1])]
    kept = points[dense(points)]
    return kept if len(kept) > n_clusters else points


def _cluster_means(means: FloatArray, counts: FloatArray, labels: IntArray) -> FloatArray:
    """Return the weighted means (K', d) of the clusters that ``labels`` (m,) name."""
    mass = np.bincount(labels, weights=counts)
    sums = np.zeros((len(mass), means.shape[1]))
    np.add.at(sums, labels, counts[:, None] * means)
    return sums / mass[:, None]


def _doubts(found: Partition) -> tuple[str, ...]:
    """Return the warning that this result may be wrong, where there is reason."""
    if found.gap >= _SURE_GAP and found.agreement >= _SURE_AGREEMENT:
        return ()
    doubt = (
        f"The clusters may be wrong: relative eigengap {found.gap:.2f}, and other neighbour counts "
        f"agree on {found.agreement:.0%} of the landmarks. Try another number of clusters, larger "
        "sites, or a smaller min_group_size."
    )
    return (doubt,)


def _with_anchors(
    state: State, contributions: Sequence[Contribution], roster: Sequence[str], options: EigenConfig
) -> Next[State, AnyTask]:
    reference = payloads_of(contributions, Anchors).get(state.asked[-1])
    if reference is None or not reference.counts.any():
        following, task = _ask_reference(state, roster, options)
        return Next(following, task)
    filled = reference.counts > 0
    common = EigenTask(anchors=reference.means[filled], vectors=reference.vectors[filled])
    following = state.model_copy(update={"phase": "eigen"})
    return Next(following, Task("eigen", common))


def _by_eigenvectors(
    state: State,
    contributions: Sequence[Contribution],
    config: RunConfig[Variants],
    options: EigenConfig,
) -> Done:
    by_site = payloads_of(contributions, Eigen)
    sent = list(by_site.values())
    counts = np.concatenate([eigen.counts for eigen in sent])
    filled = counts > 0
    vectors = np.concatenate([eigen.vectors for eigen in sent])[filled]
    means = np.concatenate([eigen.means for eigen in sent])[filled]
    # Each centroid weighs the same, as in Algorithm 1.
    centres = weighted_kmeans(
        vectors,
        np.ones(len(vectors)),
        options.n_clusters,
        server_rng(state.seed, "spectral-eigen"),
        EIGEN_N_INIT,
    )
    labels = nearest_centroid(vectors, centres)
    used, labels = np.unique(labels, return_inverse=True)
    labels = labels.reshape(-1).astype(np.int64)
    centroids = _cluster_means(means, counts[filled].astype(np.float64), labels)
    # Clusters with one mean would be one to the engine.
    firsts, cells = merge_equal_centroids(centroids)
    numbers = _numbers(centroids[firsts])[cells]
    owners = np.repeat(np.arange(len(sent)), [len(eigen.counts) for eigen in sent])[filled]
    parts = np.zeros((len(sent), len(firsts)), dtype=np.int64)
    np.add.at(parts, (owners, numbers[labels]), counts[filled])
    raw = raw_result(
        centroids[firsts][np.argsort(numbers[firsts])],
        config,
        stopped_because="finished",
        warnings=_confusion(owners, labels),
    ).model_copy(
        update={
            "sizes": tuple(int(n) for n in parts.sum(axis=0)),
            "site_sizes": {
                site: tuple(int(n) for n in own) for site, own in zip(by_site, parts, strict=True)
            },
            "extra": {"centres": centres[used], "clusters": numbers},
        }
    )
    return Done(raw)


def _numbers(centroids: FloatArray) -> IntArray:
    """Return the number (K,) that each of distinct centroids has once they are sorted."""
    numbers = np.empty(len(centroids), dtype=np.int64)
    numbers[np.lexsort(centroids.T[::-1])] = np.arange(len(centroids))
    return numbers


def _confusion(sites: IntArray, labels: IntArray) -> tuple[str, ...]:
    """Return a warning where clusters that a site tells apart fall together."""
    together = [
        len(np.unique(labels[sites == site])) < np.count_nonzero(sites == site)
        for site in np.unique(sites)
    ]
    share = float(np.mean(together))
    if share <= _CONFUSED:
        return ()
    doubt = (
        f"The clusters may be wrong: {share:.0%} of the sites have clusters of their own that fall "
        "together here, so their eigenvectors do not agree. Use alignment: landmarks."
    )
    return (doubt,)


# --- Convergence ----------------------------------------------------------------------------------


def finish(state: State, config: RunConfig[Variants]) -> Result:
    """Fail: a session that is stopped before its last round has no clusters yet."""
    del state, config
    raise MethodFailure(
        "too_few_rounds",
        "no round is left for the sites' eigenvectors: raise max_rounds to 2, and by 1 for each "
        "site that may be too small to send an anchor",
    )
