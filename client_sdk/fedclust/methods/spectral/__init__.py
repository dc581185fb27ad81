"""spectral: clusters of any shape, by the eigenvectors of neighbourhood graphs.

The paper [1]_: every site finds the eigenvectors of its own graph and clusters its points among
them; the coordinator clusters the sites' centroids. The sign of an eigenvector is arbitrary, so one
site sends an anchor and the eigenvectors' values there, and the others flip theirs to agree
(Algorithm 1).

``alignment: sign`` is that algorithm, except that the paper's anchor is a record and here it is the
mean of points near one another. ``none`` is the paper's naive variant. ``procrustes`` uses several
anchors and an orthogonal rotation, because eigenvectors of nearly equal eigenvalues rotate instead
of only flipping. All three need sites that hold all clusters.

``alignment: landmarks``, the default, does not: sites send their points, or means of small cells of
them, and the coordinator builds one graph over the landmarks of all sites. Landmarks between two
clusters would join them. They are sparser than their neighbours, and are left out of the graph
(:func:`fedclust.methods.spectral.graph.is_dense`).

References
----------
.. [1] Hernandez-Pereira, Fontenla-Romero, Guijarro-Berdinas & Perez-Sanchez, "Federated learning
   approach for spectral clustering", ESANN 2021.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import Field, FiniteFloat, RootModel

from fedclust.methods.common.assign import check_mapping, label_by_centroid, scale_rows
from fedclust.methods.common.finalize import merge_equal_centroids, raw_result
from fedclust.methods.common.kmeans_rounds import (
    GROUP_SUMS,
    Cells,
    ClusterSums,
    check_cells,
    cluster_sums,
    disclosures,
    local_kmeans,
)
from fedclust.methods.common.options import EvaluatedOptions, variants
from fedclust.methods.spectral.graph import (
    EIGEN_N_INIT,
    MAX_RBF_POINTS,
    Embedding,
    LandmarkClustering,
    align_by_rotation,
    align_by_sign,
    cluster_landmarks,
    embed,
    is_dense,
    nystroem,
)
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.arrays import FloatMatrix
from fedclust.numeric.canonical import tolerant_argmax
from fedclust.numeric.distances import first_occurrences, nearest_centroid, squared_distances
from fedclust.numeric.random import server_rng
from fedclust.numeric.ward import group_means
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.protection.message_checks import check_empty, check_shapes, refuse_first
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.schema.method import Method
from fedclust.schema.model import Memory, Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import MethodOptions, RunConfig
from fedclust.schema.task import (
    Contribution,
    Done,
    Next,
    Phase,
    Points,
    SiteSide,
    SiteTask,
    Task,
    payloads_of,
)

# --- Options --------------------------------------------------------------------------------------


#: Anchors of the Procrustes alignment by default, or K if that is more.
_N_ANCHORS = 16

Clusters = Annotated[int, Field(ge=1, le=1_000)]
Neighbours = Annotated[int, Field(ge=1, le=1_000)]
AnchorCount = Annotated[int, Field(ge=1, le=100)]


class LandmarksConfig(EvaluatedOptions, title="SpectralLandmarksConfig"):
    """Options of the default alignment: one graph over the landmarks of all sites."""

    alignment: Literal["landmarks"]
    n_clusters: Clusters
    """Number of clusters K."""
    landmarks: Annotated[int, Field(ge=1, le=1_000)] = 200
    """Largest number of landmarks of a site. Use at least 60: larger cells reach across gaps."""
    neighbours: Neighbours | None = None
    """Neighbours of a landmark in the self-tuning graph. None: the count between 5 and 25 with the
    most reliable outcome.
    """

    round_limit: ClassVar = 1
    phases: ClassVar = ("landmarks",)


class EigenConfig(MethodOptions):
    """Options of the variants in which each site has a graph of its own.

    There is no evaluation: sites count in their last round, and no site could tell another's
    clusters apart.
    """

    n_clusters: Clusters
    """Number of clusters K."""
    neighbours: Neighbours = 10
    """Neighbours of a point in the self-tuning graph."""
    gamma: Annotated[FiniteFloat, Field(gt=0)] | None = None
    """Scale of an RBF graph exp(-gamma d^2), where d is the distance of two points. None: the
    self-tuning graph.
    """

    @property
    def n_anchors(self) -> int:
        """The largest number of anchors of the reference site."""
        return 0

    @property
    def round_limit(self) -> int | None:
        """One round; with anchors, one more for every site that is asked for them."""
        return None if self.n_anchors else 1

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases of a session; without anchors only the eigenvectors."""
        return ("anchors", "eigen") if self.n_anchors else ("eigen",)


class NaiveConfig(EigenConfig, title="SpectralNaiveConfig"):
    """Options without alignment: eigenvectors keep their signs, the paper's naive variant."""

    alignment: Literal["none"]


class SignConfig(EigenConfig, title="SpectralSignConfig"):
    """Options of the paper's alignment: anchors determine which eigenvectors to flip."""

    alignment: Literal["sign"]
    anchors: AnchorCount = 1
    """Largest number of anchors of the reference site."""

    @property
    def n_anchors(self) -> int:
        """The largest number of anchors of the reference site."""
        return self.anchors


class ProcrustesConfig(EigenConfig, title="SpectralProcrustesConfig"):
    """Options of the Procrustes alignment: anchors determine how to rotate eigenvectors."""

    alignment: Literal["procrustes"]
    anchors: AnchorCount | None = None
    """Largest number of anchors of the reference site. None: the larger of 16 and K."""

    @property
    def n_anchors(self) -> int:
        """The largest number of anchors of the reference site."""
        return self.anchors or max(_N_ANCHORS, self.n_clusters)


EigenVariants: TypeAlias = SignConfig | NaiveConfig | ProcrustesConfig
Variants: TypeAlias = LandmarksConfig | EigenVariants
Config: type[RootModel[Variants]] = variants(
    "SpectralConfig",
    LandmarksConfig,
    SignConfig,
    NaiveConfig,
    ProcrustesConfig,
    by="alignment",
)


# --- What travels ---------------------------------------------------------------------------------


#: Relative rounding error of means of eigenvectors.
_SLACK = 1e-6


class LandmarksTask(Model):
    """Cluster your own points into at most ``n_cells`` small cells."""

    n_cells: Annotated[int, Field(ge=1)]


class Landmarks(Cells):
    """A site's small cells.

    Attributes
    ----------
    counts : (m,) int64
        Persons in each cell.
    means : (m, d) float64
        Mean of each cell, scaled.
    """


class AnchorPart(Model):
    """A site's own part; ``anchors``: whether it is the reference site, which sends anchors."""

    anchors: bool = False


class AnchorsTask(Model):
    """Send at most ``n_anchors`` anchors and the values of your first K eigenvectors there."""

    n_anchors: Annotated[int, Field(ge=1)]


class Anchors(Cells):
    """The reference site's anchors; all 0 from every other site.

    Attributes
    ----------
    counts : (A,) int64
        Persons behind each anchor.
    means : (A, d) float64
        The anchors, scaled: each is the mean of a small cell of points.
    vectors : (A, K) float64
        Values of the site's eigenvectors at the anchors.
    """

    vectors: FloatMatrix


class EigenTask(Model):
    """Find your eigenvectors, align them with the reference's, and cluster your points by them.

    Attributes
    ----------
    anchors : (A, d) float64 or None
        Scaled. None: no alignment.
    vectors : (A, K) float64 or None
        Values of the reference site's eigenvectors at the anchors.
    """

    anchors: FloatMatrix | None = None
    vectors: FloatMatrix | None = None


class Eigen(Cells):
    """A site's clusters among its eigenvectors.

    Attributes
    ----------
    counts : (K,) int64
        Persons in each cluster.
    means : (K, d) float64
        Mean of each cluster's points, scaled.
    vectors : (K, K) float64
        Mean of the aligned eigenvectors over the same points.
    """

    vectors: FloatMatrix


def check_anchors_task(task: SiteTask[AnchorsTask], config: RunConfig[EigenVariants]) -> None:
    """Refuse another number of anchors than the definition's."""
    n_anchors = config.options.n_anchors
    if task.common.n_anchors != n_anchors:
        message = f"the definition says {n_anchors}"
        raise RuleViolation("task", message, "/parameters/n_anchors")


def check_eigen_task(task: SiteTask[EigenTask], config: RunConfig[EigenVariants]) -> None:
    """Refuse more anchors than the definition names, or none where it names some."""
    options, anchors, vectors = config.options, task.common.anchors, task.common.vectors
    if anchors is None or vectors is None:
        if options.n_anchors or anchors is not None or vectors is not None:
            raise RuleViolation("task", "the task lacks anchors or vectors", "/parameters/anchors")
        return
    n_anchors = min(len(anchors), options.n_anchors)
    check_shapes(task.common, "/parameters", anchors=(n_anchors, len(config.columns)))
    check_shapes(task.common, "/parameters", vectors=(n_anchors, options.n_clusters))


def check_anchors(
    task: SiteTask[AnchorsTask], payload: Anchors, config: RunConfig[EigenVariants]
) -> None:
    """Check anchors at either end: shapes, counts and bounds; only the reference sends any."""
    n_anchors = task.common.n_anchors
    if payload.counts.any():
        check_cells(payload, n_anchors, config)
        if task.site != AnchorPart(anchors=True):
            raise RuleViolation("anchors", "another site is the reference", "/counts")
    else:
        check_shapes(payload, counts=(n_anchors,), means=(n_anchors, len(config.columns)))
        check_empty(payload.counts, payload.means, "/means")
    check_shapes(payload, vectors=(n_anchors, config.options.n_clusters))
    check_empty(payload.counts, payload.vectors, "/vectors")


def check_eigen(
    _task: SiteTask[EigenTask], payload: Eigen, config: RunConfig[EigenVariants]
) -> None:
    """Check a site's clusters at either end: shapes, counts, bounds, eigenvectors."""
    k = config.options.n_clusters
    check_cells(payload, k, config)
    check_shapes(payload, vectors=(k, k))
    check_empty(payload.counts, payload.vectors, "/vectors")
    n_vertices = int(payload.counts.sum()) + config.options.n_anchors
    # Nystroem's formula, which places points outside of a full graph's sample, gives no limit.
    if config.options.gamma is None or n_vertices <= MAX_RBF_POINTS:
        # K vectors of length sqrt(m), for m points and anchors, allow no larger means.
        too_large = (payload.vectors**2).sum(axis=1) > k * n_vertices * (1.0 + _SLACK)
        message = "cell {}: no mean of eigenvectors over this many persons is as large"
        refuse_first(too_large, "vectors", message, "/vectors")


# --- At a site ------------------------------------------------------------------------------------


#: The key of the embedding in a site's memory.
MEMORY_KEY = "spectral"
#: Number of cells from which anchors are chosen; more if more anchors are requested.
_N_ANCHOR_CELLS = 60
#: Restarts of k-means for small cells.
_N_INIT = 3


def _send_landmarks(task: SiteTask[LandmarksTask], site: SiteSide) -> Landmarks:
    cells = _small_cells(site.points, task.common.n_cells, site.rng)
    return Landmarks(counts=cells.counts, means=cells.means)


def _send_anchors(task: SiteTask[AnchorsTask], site: SiteSide[EigenVariants]) -> Anchors:
    n_anchors, points, options = task.common.n_anchors, site.points, site.config.options
    if task.site == AnchorPart(anchors=True):
        found = _find_anchors(n_anchors, points, options, site.rng)
        if found is not None:
            return found
    return Anchors(
        counts=np.zeros(n_anchors, dtype=np.int64),
        means=np.zeros((n_anchors, points.X.shape[1])),
        vectors=np.zeros((n_anchors, options.n_clusters)),
    )


def _small_cells(points: Points, limit: int, rng: np.random.Generator) -> ClusterSums:
    """Return cells of at least two persons on average; a cell of one row would be that row."""
    return local_kmeans(points, max(min(limit, points.n // 2), 1), _N_INIT, rng)


def _find_anchors(
    n_anchors: int, points: Points, options: EigenConfig, rng: np.random.Generator
) -> Anchors | None:
    """Return means of small cells far apart, and the eigenvectors there; None without any."""
    cells = _small_cells(points, max(_N_ANCHOR_CELLS, n_anchors), rng)
    # A cell of one person is never an anchor.
    eligible = np.flatnonzero(cells.counts > 1)
    if not len(eligible):
        return None
    chosen = eligible[_draw_farthest_first(cells.means[eligible], n_anchors, rng)]
    _, vectors = _embed(points, cells.means[chosen], options, rng)
    missing = (0, n_anchors - len(chosen))
    return Anchors(
        counts=np.pad(cells.counts[chosen], missing),
        means=np.pad(cells.means[chosen], (missing, (0, 0))),
        vectors=np.pad(vectors[len(points.X) :], (missing, (0, 0))),
    )


def _draw_farthest_first(points: FloatArray, n: int, rng: np.random.Generator) -> list[int]:
    """Return the indices of ``n`` points (m, d): a random one, then always the farthest."""
    chosen = [int(rng.integers(len(points)))]
    squares = squared_distances(points, points[chosen])[:, 0]
    while len(chosen) < min(n, len(points)):
        chosen.append(int(tolerant_argmax(squares)))
        squares = np.minimum(squares, squared_distances(points, points[chosen[-1:]])[:, 0])
    return chosen


def _embed(
    points: Points, anchors: FloatArray, options: EigenConfig, rng: np.random.Generator
) -> tuple[Embedding, FloatArray]:
    """Embed the points (m, d) and then the anchors (A, d) by K eigenvectors of their graph.

    Each point is one vertex, whatever its weight: groups have about the same size.
    """
    vertices = np.concatenate([points.X, anchors])
    return embed(
        vertices, options.n_clusters, rng, gamma=options.gamma, neighbours=options.neighbours
    )


def _cluster_own_eigenvectors(task: SiteTask[EigenTask], site: SiteSide[EigenVariants]) -> Eigen:
    points, options, asked = site.points, site.config.options, task.common
    m, d, k = len(points.X), points.X.shape[1], options.n_clusters
    anchors = np.empty((0, d)) if asked.anchors is None else asked.anchors
    basis, vectors = _embed(points, anchors, options, site.rng)
    rotation = np.eye(k)
    if asked.vectors is not None:
        procrustes = isinstance(options, ProcrustesConfig)
        align = align_by_rotation if procrustes else align_by_sign
        rotation = align(asked.vectors, vectors[m:])
    aligned = vectors[:m] @ rotation
    centres = weighted_kmeans(aligned, points.sizes.astype(np.float64), k, site.rng, EIGEN_N_INIT)
    labels = nearest_centroid(aligned, centres)
    sums = cluster_sums(points, labels, np.zeros((k, d)))
    vector_sums = cluster_sums(Points(aligned, points.sizes, np.zeros(k)), labels, np.zeros((k, k)))
    site.memory[MEMORY_KEY] = {
        "basis": dict(vars(basis)),
        "turn": rotation,
        "gamma": options.gamma,
        "neighbours": options.neighbours,
    }
    return Eigen(counts=sums.counts, means=sums.means, vectors=vector_sums.means)


_OF_GRAPH = (
    "Follows from your protected table: from how near its records are to one another. With "
    "alignment: landmarks nothing of the kind is sent."
)
_TO_ALL = " Goes to every other site, so that theirs can agree with it."
PHASES = (
    Phase(
        name="landmarks",
        once=True,
        summary=(
            "Each site sends the means of small cells of its points; the coordinator finds "
            "clusters among all of them. The means that are used go to everyone with the result, "
            "without site or count."
        ),
        task=LandmarksTask,
        payload=Landmarks,
        local_step=_send_landmarks,
        check=lambda task, sent, config: check_cells(sent, task.common.n_cells, config, fewer=True),
        discloses=disclosures(
            counts="up to 200 numbers, or as many as the session says: How many of your persons "
            "are in each small cell of your own clustering.",
            means="as many x d numbers: The mean of each column over each cell, scaled.",
            identify={
                "means": f"{GROUP_SUMS} A cell may be a single group. Part of the result, without "
                "your name."
            },
        ),
    ),
    Phase(
        name="anchors",
        summary=(
            "Paper variant: one site, the reference, sends a few means of points near one another, "
            "and its eigenvectors there. The others send nothing."
        ),
        task=AnchorsTask,
        site_part=AnchorPart,
        payload=Anchors,
        local_step=_send_anchors,
        check=check_anchors,
        check_task=check_anchors_task,
        discloses=disclosures(
            counts="A numbers: How many of your persons are behind each anchor; 0 unless you are "
            "asked.",
            means="A x d numbers: The mean of each column over these, scaled.",
            vectors="A x K numbers: Where the anchors lie among the eigenvectors of your points' "
            "graph.",
            identify={"means": GROUP_SUMS + _TO_ALL, "vectors": _OF_GRAPH + _TO_ALL},
        ),
    ),
    Phase(
        name="eigen",
        once=True,
        summary=(
            "Paper variant: each site clusters its points among the eigenvectors of its own graph "
            "and sends the clusters' means."
        ),
        task=EigenTask,
        payload=Eigen,
        local_step=_cluster_own_eigenvectors,
        check=check_eigen,
        check_task=check_eigen_task,
        discloses=disclosures(
            counts="K numbers: How many of your persons are in each of your clusters.",
            means="K x d numbers: The mean of each column over these, scaled.",
            vectors="K x K numbers: The mean of your eigenvectors over the same points.",
            identify={"vectors": _OF_GRAPH},
        ),
    ),
)


def label(result: Result, X: FloatArray, memory: Memory | None) -> IntArray:
    """Label rows in own units.

    With landmarks, every row takes the label of the nearest landmark. Otherwise only a site that
    took part can label, by its eigenvectors and Nystroem's formula.

    Parameters
    ----------
    result : Result
    X : (n, d) float64
    memory : mapping or None
        The memory of the site that labels.

    Returns
    -------
    (n,) int64
        -1 where no label is possible: at other sites, and for rows with missing values if the
        session does not impute.
    """
    # Checks the rows for every variant.
    labels = label_by_centroid(result, X)
    if result.prototypes is not None:
        return labels
    own = (memory or {}).get(MEMORY_KEY)
    if own is None:
        return np.full(len(labels), -1, dtype=np.int64)
    known = labels >= 0
    if known.any():
        labels[known] = _label_by_eigenvectors(result, scale_rows(result, X)[known], own)
    return labels


def _label_by_eigenvectors(result: Result, scaled: FloatArray, own: Memory) -> IntArray:
    """Return the labels (n,) of scaled rows (n, d) by the remembered embedding.

    Rows that are vertices of the graph, as all are with ``protection: none``, take their own
    entries; Nystroem's formula places the others.
    """
    basis = Embedding(**own["basis"])
    vectors = nystroem(basis, scaled, gamma=own["gamma"], neighbours=own["neighbours"])
    vertices = {point.tobytes(): place for place, point in enumerate(basis.points + 0.0)}
    places = np.array([vertices.get(row.tobytes(), -1) for row in scaled + 0.0], dtype=np.int64)
    vectors[places >= 0] = basis.vectors[places[places >= 0]]
    extra = result.extra
    check_mapping(extra["clusters"], len(extra["centres"]))
    return np.asarray(extra["clusters"][nearest_centroid(vectors @ own["turn"], extra["centres"])])


# --- At the coordinator ---------------------------------------------------------------------------


#: Below either of these the result gets a warning. docs/methods/spectral.md shows how often the
#: warning is right.
_RELIABLE_GAP = 0.9
_RELIABLE_AGREEMENT = 0.7
#: Share of sites whose own clusters fall together, from which the result gets a warning.
_CONFUSED_SHARE = 0.1


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


def start(config: RunConfig[Variants], seed: int) -> tuple[State, Task]:
    """Return the first state and task."""
    options = config.options
    if isinstance(options, LandmarksConfig):
        task = LandmarksTask(n_cells=options.landmarks)
        return State(phase="landmarks", seed=seed), Task("landmarks", task)
    if not options.n_anchors:
        return State(phase="eigen", seed=seed), Task("eigen", EigenTask())
    return _ask_reference(State(phase="anchors", seed=seed), config.roster, options)


def _ask_reference(state: State, roster: Sequence[str], options: EigenConfig) -> tuple[State, Task]:
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
    state: State, contributions: Sequence[Contribution], config: RunConfig[Variants]
) -> Next[State] | Done:
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
    metrics = {"eigengap": found.gap, "agreement": found.agreement}
    result = raw_result(
        group_means(means, counts, labels),
        config,
        stopped_because="finished",
        warnings=tuple(_warn_if_unreliable(found)),
        prototypes=points,
        prototype_labels=tuple(found.labels.tolist()),
        extra={"neighbours": found.neighbours, **metrics},
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


def _warn_if_unreliable(found: LandmarkClustering) -> Iterator[str]:
    if found.gap < _RELIABLE_GAP or found.agreement < _RELIABLE_AGREEMENT:
        yield (
            f"The clusters may be wrong: relative eigengap {found.gap:.2f}, and other neighbour "
            f"counts agree on {found.agreement:.0%} of the landmarks. Try another number of "
            "clusters, larger sites, or a smaller min_group_size."
        )


# --- The paper's variants -------------------------------------------------------------------------


def _close_anchors(
    state: State, anchors: Anchors | None, roster: Sequence[str], options: EigenConfig
) -> Next[State]:
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
    centroids = group_means(means, counts.astype(np.float64), labels)
    distinct, merged_into = merge_equal_centroids(centroids)
    order = np.lexsort(centroids[distinct].T[::-1])
    numbers = np.argsort(order)[merged_into]
    owners = np.repeat(np.arange(len(sent)), [len(eigen.counts) for eigen in sent.values()])[filled]
    site_sizes = np.zeros((len(sent), len(distinct)), dtype=np.int64)
    np.add.at(site_sizes, (owners, numbers[labels]), counts)
    result = raw_result(
        centroids[distinct][order],
        config,
        stopped_because="finished",
        warnings=tuple(_warn_if_confused(owners, labels)),
        sizes=tuple(site_sizes.sum(axis=0).tolist()),
        site_sizes={site: tuple(own.tolist()) for site, own in zip(sent, site_sizes, strict=True)},
        extra={"centres": centres[used], "clusters": numbers},
    )
    return Done(result)


def _warn_if_confused(sites: IntArray, labels: IntArray) -> Iterator[str]:
    """Warn if clusters that a site separates fall together."""
    fall_together = [
        len(np.unique(labels[sites == site])) < np.count_nonzero(sites == site)
        for site in np.unique(sites)
    ]
    share = float(np.mean(fall_together))
    if share > _CONFUSED_SHARE:
        yield (
            f"The clusters may be wrong: {share:.0%} of the sites have clusters of their own that "
            "fall together here, so their eigenvectors do not agree. Use alignment: landmarks."
        )


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


# --- What a paper says ----------------------------------------------------------------------------


def describe(options: Variants) -> str:
    """Return what a methods section of a paper says of these options."""
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


METHOD: Method[Variants, State] = Method(
    name="spectral",
    version=5,
    title="Federated spectral clustering (clusters of any shape)",
    citation=(
        "E. Hernandez-Pereira, O. Fontenla-Romero, B. Guijarro-Berdinas, B. Perez-Sanchez, "
        "Federated learning approach for spectral clustering, ESANN 2021"
    ),
    references=("hernandezpereira2021",),
    describe=describe,
    options=Config,
    phases=PHASES,
    label=label,
    state=State,
    start=start,
    aggregate=aggregate,
    finish=finish,
    by_prototypes=True,
)
