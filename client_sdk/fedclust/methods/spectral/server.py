"""The coordinator's steps in ``spectral``: the graph of landmarks, or the sites' eigenvectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common.finalize import merge_equal_centroids, raw_result
from fedclust.methods.spectral.config import EigenConfig, LandmarksConfig, Variants
from fedclust.methods.spectral.landmark_clustering import (
    EIGEN_N_INIT,
    LandmarkClustering,
    cluster_landmarks,
    is_dense,
)
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

#: Below either of these the result gets a warning. docs/methods/spectral.md shows how often the
#: warning is right.
_RELIABLE_GAP = 0.9
_RELIABLE_AGREEMENT = 0.7
#: Share of sites whose own clusters fall together, from which the result gets a warning.
_CONFUSED_SHARE = 0.1

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class State(Model):
    """The state of a session between rounds.

    Attributes
    ----------
    phase : {"landmarks", "anchors", "eigen"}
        The phase of the open round.
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
        return State(phase="landmarks", seed=seed), Task("landmarks", task)
    if not options.n_anchors:
        return State(phase="eigen", seed=seed), Task("eigen", EigenTask())
    return _ask_reference(State(phase="anchors", seed=seed), config.roster, options)


def _ask_reference(
    state: State, roster: Sequence[str], options: EigenConfig
) -> tuple[State, Task[AnyTask]]:
    """Ask the first site by name that was not asked before for anchors."""
    remaining = [site for site in roster if site not in state.asked]
    if not remaining:
        raise MethodFailure(
            "no_anchors",
            "no site has two persons near each other, whose mean could be an anchor: invite larger "
            "sites, or use alignment: landmarks",
        )
    reference = remaining[0]
    parts = {site: AnchorPart(anchors=site == reference) for site in roster}
    task = Task("anchors", AnchorsTask(n_anchors=options.n_anchors), per_site=parts)
    return state.model_copy(update={"asked": (*state.asked, reference)}), task


def aggregate(
    state: State, contributions: Sequence[Contribution[AnyPayload]], config: RunConfig[Variants]
) -> Next[State, AnyTask] | Done:
    """Aggregate a round.

    Parameters
    ----------
    state : State
    contributions : sequence of Contribution
        Sorted by site.
    config : RunConfig

    Returns
    -------
    Next or Done

    Raises
    ------
    MethodFailure
        If no site can send an anchor.
    """
    options = config.options
    if isinstance(options, LandmarksConfig):
        landmarks = list(payloads_of(contributions, Landmarks).values())
        return _cluster_landmarks(state.seed, landmarks, config, options)
    if state.phase == "anchors":
        anchors = payloads_of(contributions, Anchors).get(state.asked[-1])
        return _close_anchors(state, anchors, config.roster, options)
    return _cluster_all_eigenvectors(state.seed, payloads_of(contributions, Eigen), config, options)


# --- Landmarks ------------------------------------------------------------------------------------


def _cluster_landmarks(
    seed: int, sent: Sequence[Landmarks], config: RunConfig[Variants], options: LandmarksConfig
) -> Done:
    counts = np.concatenate([landmarks.counts for landmarks in sent]).astype(np.float64)
    # Adding 0 turns -0.0 into 0.0, so that equal points have equal bytes.
    means = np.concatenate([landmarks.means for landmarks in sent]) + 0.0
    points = _graph_points(means, options.n_clusters)
    rng = server_rng(seed, "spectral-landmarks")
    found = cluster_landmarks(points, options.n_clusters, rng, options.neighbours)
    labels = found.labels[_graph_places(means, points)]
    raw = raw_result(
        _weighted_means(means, counts, labels),
        config,
        stopped_because="finished",
        warnings=_warn_if_unreliable(found),
    )
    metrics = {"eigengap": found.gap, "agreement": found.agreement}
    result = raw.model_copy(
        update={
            "prototypes": points,
            "prototype_labels": tuple(int(label) for label in found.labels),
            "extra": {"neighbours": found.neighbours, **metrics},
        }
    )
    return Done(result, metrics)


def _graph_points(means: FloatArray, n_clusters: int) -> FloatArray:
    """Return the distinct landmarks (M, d) of the graph: the dense ones, if these are more than K.

    They are sorted by value, so that the result does not reveal their sites.
    """
    points = means[first_occurrences(means)]
    points = points[np.lexsort(points.T[::-1])]
    kept = points[is_dense(points)]
    return kept if len(kept) > n_clusters else points


def _graph_places(means: FloatArray, points: FloatArray) -> IntArray:
    """Return the graph's point (m,) of each landmark: its own, or the nearest if it has none."""
    places = nearest_centroid(means, points)
    # By value, because rounding may make another point as near as the landmark's own.
    own = {point.tobytes(): place for place, point in enumerate(points)}
    return np.array(
        [own.get(mean.tobytes(), place) for mean, place in zip(means, places, strict=True)]
    )


def _weighted_means(means: FloatArray, counts: FloatArray, labels: IntArray) -> FloatArray:
    """Return the weighted means (K', d) of the clusters that ``labels`` (m,) name."""
    mass = np.bincount(labels, weights=counts)
    sums = np.zeros((len(mass), means.shape[1]))
    np.add.at(sums, labels, counts[:, None] * means)
    return sums / mass[:, None]


def _warn_if_unreliable(found: LandmarkClustering) -> tuple[str, ...]:
    if found.gap >= _RELIABLE_GAP and found.agreement >= _RELIABLE_AGREEMENT:
        return ()
    warning = (
        f"The clusters may be wrong: relative eigengap {found.gap:.2f}, and other neighbour counts "
        f"agree on {found.agreement:.0%} of the landmarks. Try another number of clusters, larger "
        "sites, or a smaller min_group_size."
    )
    return (warning,)


# --- The paper's variants -------------------------------------------------------------------------


def _close_anchors(
    state: State, anchors: Anchors | None, roster: Sequence[str], options: EigenConfig
) -> Next[State, AnyTask]:
    """Pass the reference site's anchors on to all sites; ask another site if it has none."""
    if anchors is None or not anchors.counts.any():
        state, task = _ask_reference(state, roster, options)
        return Next(state, task)
    filled = anchors.counts > 0
    common = EigenTask(anchors=anchors.means[filled], vectors=anchors.vectors[filled])
    return Next(state.model_copy(update={"phase": "eigen"}), Task("eigen", common))


def _cluster_all_eigenvectors(
    seed: int, sent: Mapping[str, Eigen], config: RunConfig[Variants], options: EigenConfig
) -> Done:
    all_counts = np.concatenate([eigen.counts for eigen in sent.values()])
    filled = all_counts > 0
    counts = all_counts[filled]
    vectors = np.concatenate([eigen.vectors for eigen in sent.values()])[filled]
    means = np.concatenate([eigen.means for eigen in sent.values()])[filled]
    # Each centroid has the same weight, as in Algorithm 1.
    rng = server_rng(seed, "spectral-eigen")
    centres = weighted_kmeans(vectors, np.ones(len(vectors)), options.n_clusters, rng, EIGEN_N_INIT)
    used, places = np.unique(nearest_centroid(vectors, centres), return_inverse=True)
    labels = places.reshape(-1).astype(np.int64)
    # The engine requires distinct centroids, so clusters with equal means are merged.
    centroids = _weighted_means(means, counts.astype(np.float64), labels)
    distinct, merged_into = merge_equal_centroids(centroids)
    numbers = _sorted_numbers(centroids[distinct])[merged_into]
    owners = np.repeat(np.arange(len(sent)), [len(eigen.counts) for eigen in sent.values()])[filled]
    site_sizes = np.zeros((len(sent), len(distinct)), dtype=np.int64)
    np.add.at(site_sizes, (owners, numbers[labels]), counts)
    raw = raw_result(
        centroids[distinct][np.argsort(numbers[distinct])],
        config,
        stopped_because="finished",
        warnings=_warn_if_confused(owners, labels),
    )
    result = raw.model_copy(
        update={
            "sizes": tuple(site_sizes.sum(axis=0).tolist()),
            "site_sizes": {
                site: tuple(own.tolist()) for site, own in zip(sent, site_sizes, strict=True)
            },
            "extra": {"centres": centres[used], "clusters": numbers},
        }
    )
    return Done(result)


def _sorted_numbers(centroids: FloatArray) -> IntArray:
    """Return the number (K,) that each of distinct centroids gets when they are sorted."""
    numbers = np.empty(len(centroids), dtype=np.int64)
    numbers[np.lexsort(centroids.T[::-1])] = np.arange(len(centroids))
    return numbers


def _warn_if_confused(sites: IntArray, labels: IntArray) -> tuple[str, ...]:
    """Return a warning if clusters that a site separates fall together."""
    fall_together = [
        len(np.unique(labels[sites == site])) < np.count_nonzero(sites == site)
        for site in np.unique(sites)
    ]
    share = float(np.mean(fall_together))
    if share <= _CONFUSED_SHARE:
        return ()
    warning = (
        f"The clusters may be wrong: {share:.0%} of the sites have clusters of their own that fall "
        "together here, so their eigenvectors do not agree. Use alignment: landmarks."
    )
    return (warning,)


def finish(state: State, config: RunConfig[Variants]) -> Result:
    """Fail: a session that is stopped before its last round has no clusters yet.

    Raises
    ------
    MethodFailure
    """
    del state, config
    raise MethodFailure(
        "too_few_rounds",
        "no round is left for the sites' eigenvectors: raise max_rounds to 2, and by 1 for each "
        "site that may be too small to send an anchor",
    )
