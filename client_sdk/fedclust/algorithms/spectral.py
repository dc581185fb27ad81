"""spectral: clusters of any shape, by the eigenvectors of neighbourhood graphs.

What it says and cites
    Hernandez-Pereira, Fontenla-Romero, Guijarro-Berdinas & Perez-Sanchez, "Federated learning
    approach for spectral clustering", ESANN 2021. Every site finds the eigenvectors of its own
    graph and clusters its rows among them; the coordinator clusters the sites' centroids. Since
    eigenvectors are known up to their sign, one site sends an anchor and the anchor's entries,
    and the others flip theirs to agree (Algorithm 1).

``alignment: sign`` is that algorithm, but for the anchor: the paper sends a record, a site here
the mean of at least p records near one another. ``none`` is the paper's naive variant.
``procrustes`` uses several such anchors and an orthogonal rotation: where eigenvalues nearly
coincide, eigenvectors turn and do not just flip. All three need sites that hold all clusters.

``alignment: landmarks``, the default, does not: sites send means of small cells of their rows,
and the graph is built once, at the coordinator, over the means of all sites.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from fedclust.algorithms import lloyd
from fedclust.algorithms.arrays import FloatMatrix, FloatVector, IntVector
from fedclust.algorithms.assigning import (
    first_occurrences,
    label_by_centroid,
    nearest,
    squared_distances,
)
from fedclust.algorithms.base import (
    Contribution,
    Disclosure,
    Done,
    LocalAnswer,
    Memory,
    Method,
    MethodFailure,
    Model,
    Next,
    Phase,
    Result,
    RuleViolation,
    RunConfig,
    SiteData,
    SiteTask,
    Space,
    Task,
    Totals,
)
from fedclust.algorithms.finishing import merged, raw_result
from fedclust.algorithms.kmeans import weighted_kmeans
from fedclust.algorithms.local_cells import LOCAL
from fedclust.algorithms.releasing import index_of, release
from fedclust.algorithms.releasing import site_totals as totals_of
from fedclust.algorithms.seeding import server_rng
from fedclust.algorithms.spaces import scaled_bounds
from fedclust.algorithms.spectral_cells import common_rows, resting_on_few, small_cells
from fedclust.algorithms.spectral_graph import (
    MOST_JOINED,
    NEIGHBOURS,
    Embedding,
    Partition,
    cluster_landmarks,
    embed,
    nystroem,
    rotation,
    signs,
)
from fedclust.algorithms.totals import (
    DISCLOSURE,
    SitePart,
    check_sizes,
    check_totals,
    site_parts,
)
from fedclust.privacy.checks import check_empty, check_means, check_shape
from fedclust.privacy.moments import cell_moments
from fedclust.privacy.sizes import suppress_sizes

VERSION = 2
#: What a site remembers of its eigenvectors, for its own rows' labels and for new ones.
_OWN = "spectral"
_LANDMARKS = 60
_ANCHORS = 16
_NEIGHBOURS = 10
_EIGEN_N_INIT = 10
#: Cells wider than so many median radii reach across a gap, or lie in no cluster at all; the
#: second where the outcome of the first is in doubt. With 1.5 (ALGORITHMS) thin clusters beside
#: narrow ones lose whole stretches: three rings, 100 rows a ring and site, .85 for 1.00.
_WIDEST = (2.0, 3.0)
_SLACK = 1e-6
#: Steps in which what is told of eigenvectors is told: finer ones say nothing about clusters.
_STEPS = 1_024
#: Below either, the result says that it may be wrong; see docs/methods/spectral.md for how often
#: the warning is raised where it should be, and where it should not.
_SURE_GAP = 0.9
_SURE_AGREEMENT = 0.7
#: Sites whose clusters do not go to different global ones, from this share on.
_CONFUSED = 0.1

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# --- Config ---------------------------------------------------------------------------------------


class Config(Model):
    """What the analyst chooses.

    Attributes
    ----------
    n_clusters : int
        Number of clusters K.
    alignment : {"landmarks", "sign", "none", "procrustes"}
        How the sites' graphs become one clustering; the last three are the paper's kind.
    landmarks : int or None
        Only for ``landmarks``: the most that a site sends. None: 60.
    neighbours : int or None
        Neighbours of a point in the self-tuning graph. None: with ``landmarks`` the count of the
        largest eigengap among 5 to 25, else 10.
    gamma : float or None
        Not for ``landmarks``: an RBF graph exp(-gamma |x - y|^2) in the place of the self-tuning
        one.
    anchors : int or None
        Only for ``sign`` and ``procrustes``. None: 1 and 16.
    evaluate : bool
        Whether a closing round measures sizes and inertia. Only for ``landmarks``: the others count
        in their last round, and nothing that all sites know alike tells their clusters apart.
    """

    n_clusters: Annotated[int, Field(ge=1, le=1_000)]
    alignment: Literal["landmarks", "sign", "none", "procrustes"] = "landmarks"
    landmarks: Annotated[int, Field(ge=1, le=1_000)] | None = None
    neighbours: Annotated[int, Field(ge=1, le=1_000)] | None = None
    gamma: Annotated[FiniteFloat, Field(gt=0)] | None = None
    anchors: Annotated[int, Field(ge=1, le=100)] | None = None
    evaluate: bool = True

    @property
    def n_landmarks(self) -> int:
        """The most landmarks of a site."""
        return self.landmarks or _LANDMARKS

    @property
    def n_anchors(self) -> int:
        """The most anchors that the reference site sends."""
        if self.anchors is not None:
            return self.anchors
        return {"sign": 1, "procrustes": max(_ANCHORS, self.n_clusters)}.get(self.alignment, 0)

    @property
    def n_neighbours(self) -> int:
        """Neighbours in a site's own self-tuning graph."""
        return self.neighbours or _NEIGHBOURS


def check_config(config: RunConfig) -> None:
    """Refuse options that do not fit each other."""
    options: Config = config.options
    if options.alignment == "landmarks":
        refused = [("gamma", options.gamma), ("anchors", options.anchors)]
    else:
        refused = [("landmarks", options.landmarks)]
        if options.alignment == "none":
            refused.append(("anchors", options.anchors))
    for name, value in refused:
        if value is not None:
            raise RuleViolation(
                "variant",
                f"alignment: {options.alignment} has no {name}; leave it out",
                f"/{name}",
            )


# --- Payloads -------------------------------------------------------------------------------------


class LandmarksTask(Model):
    """Cluster your rows by yourself into at most ``n_cells`` small cells."""

    n_cells: Annotated[int, Field(ge=1)]


class Landmarks(Model):
    """A site's small cells.

    Attributes
    ----------
    counts : (m,) int64
    means : (m, d) float64
        Scaled.
    radii : (m,) float64
        Root mean squared distances of the cells' rows from their means, scaled.
    totals : Totals or None
    """

    counts: IntVector
    means: FloatMatrix
    radii: FloatVector
    totals: Totals | None = None


class AnchorPart(SitePart):
    """A site's own part; ``anchors``: whether it is the reference and sends them."""

    anchors: bool = False


class AnchorsTask(Model):
    """Send at most ``n_anchors`` anchors and what your first K eigenvectors say of them."""

    n_anchors: Annotated[int, Field(ge=1)]


class Anchors(Model):
    """The reference site's anchors; all 0 from every other site.

    Attributes
    ----------
    counts : (A,) int64
    means : (A, d) float64
        Scaled: each is the mean of rows near one another.
    vectors : (A, K) float64
        What the site's eigenvectors are at the anchors.
    totals : Totals or None
    """

    counts: IntVector
    means: FloatMatrix
    vectors: FloatMatrix
    totals: Totals | None = None


class EigenTask(Model):
    """Find your eigenvectors, make them agree with the reference's, and cluster your rows there.

    Attributes
    ----------
    anchors : (A, d) float64 or None
        Scaled. None: nothing is made to agree.
    vectors : (A, K) float64 or None
    """

    anchors: FloatMatrix | None = None
    vectors: FloatMatrix | None = None


class Eigen(Model):
    """A site's clusters among its eigenvectors.

    Attributes
    ----------
    counts : (K,) int64
    means : (K, d) float64
        Of the features, scaled.
    vectors : (K, K) float64
        Of the aligned eigenvectors, over the same rows.
    totals : Totals or None
    """

    counts: IntVector
    means: FloatMatrix
    vectors: FloatMatrix
    totals: Totals | None = None


_GUARDED = (
    "Each number describes 0 or at least the smallest count of persons. The guard holds back "
    "whatever would single out fewer when this answer is compared with any earlier one."
)
_MEANS = (
    _GUARDED + " No mean is a person's record. The share of a yes/no feature or level is rounded "
    "where fewer than the smallest count have, or lack, it."
)
_OF_ALL_ROWS = (
    "Follows from all your rows together, as to how near they are to one another. An eigenvector "
    "that rests on fewer than the smallest count of persons is not told, and where most rows are "
    "like many others, the rest count as the nearest of those. What else may be inferred is not "
    "known; with alignment: landmarks nothing of the kind is sent."
)
_TO_ALL = " Goes to every other site, so that theirs can agree with it."
PHASES = (
    Phase(
        name="landmarks",
        summary=(
            "Each site sends the means of small cells of its rows; the coordinator finds clusters "
            "among all of them. The means that are used go to everyone with the result, without "
            "site, count or radius."
        ),
        task=LandmarksTask,
        site_part=SitePart,
        payload=Landmarks,
        discloses=(
            Disclosure(
                field="counts",
                shape="up to 60 numbers, or as many as the session says",
                meaning="How many of your rows are in each small cell of your own clustering.",
                identifies=_GUARDED,
            ),
            Disclosure(
                field="means",
                shape="as many x d numbers",
                meaning="The mean of each feature over the rows of each cell, scaled.",
                identifies=_MEANS + " Part of the result, without your name.",
            ),
            Disclosure(
                field="radii",
                shape="as many numbers",
                meaning="How far these rows lie from their mean: root of the mean square.",
                identifies=_GUARDED,
            ),
            DISCLOSURE,
        ),
    ),
    Phase(
        name="anchors",
        summary=(
            "Paper variant: one site, the reference, sends a few means of rows near one another, "
            "and its eigenvectors there. The others send nothing but totals."
        ),
        task=AnchorsTask,
        site_part=AnchorPart,
        payload=Anchors,
        discloses=(
            Disclosure(
                field="counts",
                shape="A numbers",
                meaning="How many of your rows are behind each anchor; 0 unless you are asked.",
                identifies=_GUARDED,
            ),
            Disclosure(
                field="means",
                shape="A x d numbers",
                meaning="The mean of each feature over these rows, scaled.",
                identifies=_MEANS + _TO_ALL,
            ),
            Disclosure(
                field="vectors",
                shape="A x K numbers",
                meaning="Where the anchors lie among the eigenvectors of all your rows' graph.",
                identifies=_OF_ALL_ROWS + _TO_ALL,
            ),
            DISCLOSURE,
        ),
    ),
    Phase(
        name="eigen",
        summary=(
            "Paper variant: each site clusters its rows among the eigenvectors of its own graph "
            "and sends the clusters' means."
        ),
        task=EigenTask,
        site_part=SitePart,
        payload=Eigen,
        discloses=(
            Disclosure(
                field="counts",
                shape="K numbers",
                meaning="How many of your rows are in each of your clusters.",
                identifies=_GUARDED,
            ),
            Disclosure(
                field="means",
                shape="K x d numbers",
                meaning="The mean of each feature over these rows, scaled.",
                identifies=_MEANS,
            ),
            Disclosure(
                field="vectors",
                shape="K x K numbers",
                meaning="The mean of your eigenvectors over the same rows.",
                identifies=_OF_ALL_ROWS,
            ),
            DISCLOSURE,
        ),
    ),
)


def check(task: SiteTask, payload: Landmarks | Anchors | Eigen, config: RunConfig) -> None:
    """Check an answer at either end: shapes, counts, complement, bounds, radii, vectors."""
    options: Config = config.options
    d, k = len(config.columns), options.n_clusters
    lower, upper = scaled_bounds(config)
    check_totals(payload.totals, task.site, config)
    if isinstance(payload, Landmarks):
        n_cells = min(max(len(payload.counts), 1), task.common.n_cells)
    else:
        n_cells = task.common.n_anchors if isinstance(payload, Anchors) else k
    check_shape(payload.counts, (n_cells,), "/counts")
    check_shape(payload.means, (n_cells, d), "/means")
    check_sizes(payload.counts, payload.totals, task.site, config)
    check_empty(payload.counts, payload.means, "/means")
    check_means(payload.counts, payload.means, lower, upper, "/means")
    if isinstance(payload, Landmarks):
        _check_radii(payload, lower, upper)
        return
    check_shape(payload.vectors, (n_cells, k), "/vectors")
    check_empty(payload.counts, payload.vectors, "/vectors")
    if isinstance(payload, Anchors):
        if payload.counts.any() and not (task.site is not None and task.site.anchors):
            raise RuleViolation("anchors", "another site is the reference", "/counts")
        members = np.minimum(payload.counts, 1)
    else:
        members = payload.counts
    _check_vectors(payload, members, task, options)


def _check_radii(sent: Landmarks, lower: FloatArray, upper: FloatArray) -> None:
    """Raise unless each radius is one that rows within bounds can have."""
    check_shape(sent.radii, sent.counts.shape, "/radii")
    check_empty(sent.counts, sent.radii, "/radii")
    with np.errstate(invalid="ignore"):
        widest = ((upper - sent.means) * (sent.means - lower)).sum(axis=1)
    widest = np.where(np.isfinite(widest), np.maximum(widest, 0.0), np.inf)
    wrong = (sent.radii < 0) | (sent.radii**2 > widest * (1.0 + _SLACK) + _SLACK)
    if wrong.any():
        cell = int(np.flatnonzero(wrong)[0])
        raise RuleViolation(
            "radius",
            f"the radius of cell {cell} is negative or wider than the bounds allow",
            f"/radii/{cell}",
        )


def _check_vectors(
    sent: Anchors | Eigen, members: IntArray, task: SiteTask, options: Config
) -> None:
    """Raise where a mean is larger than K vectors of length sqrt(m) allow, m rows and anchors.

    Where a graph joins all of these, no K entries exceed K m together, nor their mean over a cell
    of c rows K m / c. The self-tuning graph joins distinct rows: those of a cell may all be one.
    Nystroem's formula, for more rows than a graph takes, gives no such bound.
    """
    rows = sent.totals.n if sent.totals is not None else None
    if rows is None and task.site is not None:
        rows = task.site.rows
    if rows is None:
        return
    joined = rows + options.n_anchors
    if options.gamma is not None and joined > MOST_JOINED:
        return
    apart = np.maximum(members, 1) if options.gamma is not None else 1
    most = np.broadcast_to(options.n_clusters * joined / apart, members.shape)
    wrong = (sent.vectors**2).sum(axis=1) > most * (1.0 + _SLACK)
    if wrong.any():
        cell = int(np.flatnonzero(wrong)[0])
        raise RuleViolation(
            "vectors",
            f"cell {cell}: no mean of eigenvectors of this many rows is as large",
            f"/vectors/{cell}",
        )


# --- Local step -----------------------------------------------------------------------------------


def local_step(
    task: SiteTask, data: SiteData, config: RunConfig, rng: np.random.Generator, memory: Memory
) -> LocalAnswer:
    """Answer a task from a site's scaled rows (n, d)."""
    asked = task.site is not None and task.site.totals
    totals = totals_of(data, config) if asked else None
    if task.phase == "landmarks":
        return _landmarks(task.common, data, config, rng, memory, totals)
    if task.phase == "anchors":
        return _anchors(task, data, config, rng, memory, totals)
    return _eigen(task.common, data, config, rng, memory, totals)


def _small_cells(
    n_cells: int, data: SiteData, config: RunConfig, rng: np.random.Generator
) -> IntArray:
    """Return the small cell (n,) of each row; a row alone is none even where p is 1."""
    return small_cells(data.X, n_cells, max(config.p, 2), index_of(data), rng)


def _landmarks(
    task: LandmarksTask,
    data: SiteData,
    config: RunConfig,
    rng: np.random.Generator,
    memory: Memory,
    totals: Totals | None,
) -> LocalAnswer:
    wanted = _small_cells(task.n_cells, data, config, rng)
    n_cells = int(wanted.max()) + 1
    released, memory = release(data, config, memory, wanted, n_cells, candidate=LOCAL)
    memory = {**memory, LOCAL: released.labels}
    if released.empty and totals is None:
        return None, memory
    moments = released.moments
    radii = np.sqrt(moments.m2.sum(axis=1) / np.maximum(moments.counts, 1))
    sent = Landmarks(counts=moments.counts, means=moments.means, radii=radii, totals=totals)
    return sent, memory


def _anchors(
    task: SiteTask,
    data: SiteData,
    config: RunConfig,
    rng: np.random.Generator,
    memory: Memory,
    totals: Totals | None,
) -> LocalAnswer:
    options: Config = config.options
    n_anchors, d = task.common.n_anchors, data.X.shape[1]
    counts = np.zeros(n_anchors, dtype=np.int64)
    means, vectors = np.zeros((n_anchors, d)), np.zeros((n_anchors, options.n_clusters))
    if task.site is not None and task.site.anchors:
        cells = _small_cells(max(_LANDMARKS, n_anchors), data, config, rng)
        centres = cell_moments(data.X, cells, int(cells.max()) + 1).means
        chosen = _spread(centres, n_anchors, rng)
        place = np.full(len(centres), -1, dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        released, memory = release(data, config, memory, place[cells], n_anchors, "anchors")
        counts, means = released.moments.counts, released.moments.means
        if counts.any():
            _, found = _embedded(data, means[counts > 0], config, rng)
            vectors[counts > 0] = _stepped(found[len(data.X) :])
    return Anchors(counts=counts, means=means, vectors=vectors, totals=totals), memory


def _spread(points: FloatArray, n: int, rng: np.random.Generator) -> list[int]:
    """Return the places of ``n`` points (m, d): one at random, then always the farthest."""
    chosen = [int(rng.integers(len(points)))]
    gap = squared_distances(points, points[chosen])[:, 0]
    while len(chosen) < min(n, len(points)):
        chosen.append(int(gap.argmax()))
        gap = np.minimum(gap, squared_distances(points, points[chosen[-1:]])[:, 0])
    return chosen


def _embedded(
    data: SiteData, anchors: FloatArray, config: RunConfig, rng: np.random.Generator
) -> tuple[Embedding, FloatArray]:
    """Return rows (n, d), then anchors (A, d), among the first K eigenvectors of their graph.

    An eigenvector that rests on fewer than p persons is 0 everywhere.
    """
    options: Config = config.options
    points = np.concatenate([common_rows(data.X, data.persons, config.p), anchors])
    basis, found = embed(
        points, options.n_clusters, rng, gamma=options.gamma, neighbours=options.n_neighbours
    )
    told = ~resting_on_few(found[: len(data.X)], index_of(data), config.p)
    return replace(basis, vectors=basis.vectors * told), found * told


def _stepped(vectors: FloatArray) -> FloatArray:
    """Return vectors rounded towards 0, so that no mean becomes larger than it can be."""
    return np.asarray(np.trunc(vectors * _STEPS) / _STEPS + 0.0)


def _eigen(
    task: EigenTask,
    data: SiteData,
    config: RunConfig,
    rng: np.random.Generator,
    memory: Memory,
    totals: Totals | None,
) -> LocalAnswer:
    options: Config = config.options
    n, d = data.X.shape
    k = options.n_clusters
    if _OWN in memory:
        # Asked again with other anchors, the answers would tell what the graph looks like there.
        raise RuleViolation("task", "a site's eigenvectors are asked for once", "/phase")
    anchors = np.empty((0, d)) if task.anchors is None else task.anchors
    most = min(len(anchors), options.n_anchors)
    check_shape(anchors, (most, d), "/parameters/anchors")
    basis, found = _embedded(data, anchors, config, rng)
    turn = np.eye(k)
    if task.vectors is not None:
        check_shape(task.vectors, (len(anchors), k), "/parameters/vectors")
        align = rotation if options.alignment == "procrustes" else signs
        turn = align(task.vectors, found[n:])
    own = found[:n] @ turn
    centres = weighted_kmeans(own, np.ones(n), k, rng, _EIGEN_N_INIT)
    wanted = nearest(own, centres)
    released, memory = release(data, config, memory, wanted, k)
    kept = {
        "rows": _digest(data.X),
        "own": own,
        "points": basis.points,
        "vectors": basis.vectors,
        "turn": turn,
        "values": basis.values,
        "scales": basis.scales,
        "gamma": options.gamma,
        "neighbours": options.n_neighbours,
    }
    memory = {**memory, _OWN: kept}
    if released.empty and totals is None:
        return None, memory
    moments = released.moments
    vectors = _stepped(cell_moments(own, released.labels, k).means)
    sent = Eigen(counts=moments.counts, means=moments.means, vectors=vectors, totals=totals)
    return sent, memory


def _digest(rows: FloatArray) -> bytes:
    """Return what tells a site's own rows (n, d) from others."""
    return hashlib.sha256(np.ascontiguousarray(rows + 0.0).tobytes()).digest()


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


def start(config: RunConfig, seed: int) -> tuple[State, Task]:
    """Return the first state and task."""
    options: Config = config.options
    if options.alignment == "landmarks":
        task = LandmarksTask(n_cells=options.n_landmarks)
        state = State(phase="landmarks", seed=seed)
        return state, Task("landmarks", task, per_site=site_parts(config))
    if options.alignment == "none":
        state = State(phase="eigen", seed=seed)
        return state, Task("eigen", EigenTask(), per_site=site_parts(config))
    return _ask_reference(State(phase="anchors", seed=seed), config)


def _ask_reference(state: State, config: RunConfig) -> tuple[State, Task]:
    """Ask the first site by name that was not asked before."""
    options: Config = config.options
    left = [site for site in config.roster if site not in state.asked]
    if not left:
        raise lloyd.nothing_to_release()
    parts = {
        site: AnchorPart(totals=part.totals, rows=part.rows, anchors=site == left[0])
        for site, part in site_parts(config).items()
    }
    task = Task("anchors", AnchorsTask(n_anchors=options.n_anchors), per_site=parts)
    return state.model_copy(update={"asked": (*state.asked, left[0])}), task


def aggregate(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next | Done:
    """Close a round; contributions sorted by site."""
    if state.phase == "landmarks":
        return _by_landmarks(state, contributions, config)
    if state.phase == "anchors":
        return _with_anchors(state, contributions, config)
    return _by_eigenvectors(state, contributions, config)


def _by_landmarks(state: State, contributions: Sequence[Contribution], config: RunConfig) -> Done:
    options: Config = config.options
    sent: list[Landmarks] = [c.payload for c in contributions if c.payload is not None]
    lloyd.refuse_too_few([landmarks.counts for landmarks in sent], config)
    counts = np.concatenate([landmarks.counts for landmarks in sent])
    filled = counts > 0
    counts = counts[filled].astype(np.float64)
    means = np.concatenate([landmarks.means for landmarks in sent])[filled]
    radii = np.concatenate([landmarks.radii for landmarks in sent])[filled]
    points, found = _clustered(means, radii, state.seed, options)
    # Landmarks that took no part in the graph count for the cluster that their rows will take.
    labels = found.labels[nearest(means, points)]
    centroids = _cluster_means(means, counts, labels)
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


def _clustered(
    means: FloatArray, radii: FloatArray, seed: int, options: Config
) -> tuple[FloatArray, Partition]:
    """Return the landmarks (M, d) that make up the graph, and their clusters.

    Where the outcome is in doubt, wider landmarks are let in, and the surer outcome stands.
    """
    tried = []
    for factor in _WIDEST:
        points = means[_narrow(means, radii, factor, options.n_clusters)] + 0.0
        points = points[first_occurrences(points)]
        # By value: nothing tells whose they are, and no order of sites is left in the result.
        points = points[np.lexsort(points.T[::-1])]
        rng = server_rng(seed, f"spectral-landmarks-{factor}")
        found = cluster_landmarks(points, options.n_clusters, NEIGHBOURS, rng, options.neighbours)
        tried.append((points, found))
        if not _doubts(found):
            break
    return max(tried, key=lambda item: item[1].gap + item[1].agreement)


def _narrow(
    means: FloatArray, radii: FloatArray, factor: float, n_clusters: int
) -> NDArray[np.bool_]:
    """Return which landmarks (m,) are no wider than ``factor`` median radii, if enough are left."""
    limit = factor * float(np.median(radii))
    kept = radii <= limit
    # Rows that repeat: more than half of the cells have no width, and width says nothing.
    if limit == 0.0 or len(first_occurrences(means[kept])) <= n_clusters:
        return np.ones(len(radii), dtype=np.bool_)
    return kept


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
        "sites, or a smaller min_cluster_size."
    )
    return (doubt,)


def _with_anchors(state: State, contributions: Sequence[Contribution], config: RunConfig) -> Next:
    sent = {c.site: c.payload for c in contributions if c.payload is not None}
    reference: Anchors | None = sent.get(state.asked[-1])
    if reference is None or not reference.counts.any():
        following, task = _ask_reference(state, config)
        return Next(following, task)
    filled = reference.counts > 0
    common = EigenTask(anchors=reference.means[filled], vectors=reference.vectors[filled])
    following = state.model_copy(update={"phase": "eigen"})
    return Next(following, Task("eigen", common, per_site=site_parts(config)))


def _by_eigenvectors(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Done:
    options: Config = config.options
    answered = [c.site for c in contributions if c.payload is not None]
    sent: list[Eigen] = [c.payload for c in contributions if c.payload is not None]
    lloyd.refuse_too_few([eigen.counts for eigen in sent], config)
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
        _EIGEN_N_INIT,
    )
    labels = nearest(vectors, centres)
    used, labels = np.unique(labels, return_inverse=True)
    labels = labels.reshape(-1).astype(np.int64)
    centroids = _cluster_means(means, counts[filled].astype(np.float64), labels)
    # Clusters with one mean would be one to the engine.
    firsts, cells = merged(centroids)
    numbers = _numbers(centroids[firsts])[cells]
    owners = np.repeat(np.arange(len(sent)), [len(eigen.counts) for eigen in sent])[filled]
    parts = np.zeros((len(sent), len(firsts)), dtype=np.int64)
    np.add.at(parts, (owners, numbers[labels]), counts[filled])
    strictest = max([config.p, *(c.p for c in contributions)])
    raw = raw_result(
        centroids[firsts][np.argsort(numbers[firsts])],
        config,
        stopped_because="finished",
        warnings=_confusion(owners, labels),
    ).model_copy(
        update={
            "sizes": suppress_sizes(parts.sum(axis=0), parts, strictest),
            "site_sizes": {
                site: tuple(int(n) for n in own) for site, own in zip(answered, parts, strict=True)
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


def finish(state: State, config: RunConfig) -> Result:
    """Fail: a session that is stopped before its last round has no clusters yet."""
    del state, config
    raise MethodFailure(
        "too_few_rounds",
        "no round is left for the sites' eigenvectors: raise max_rounds to 2, and by 1 for each "
        "site that may be too small to send an anchor",
    )


# --- Labelling ------------------------------------------------------------------------------------


def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
    """Label rows (n, d) in own units.

    With landmarks every row takes the label of the nearest. Otherwise only a site that took part
    can label: its own rows by their eigenvectors, others by Nystroem's formula; -1 elsewhere, and
    for rows with missing values where the session does not impute.
    """
    # Refuses what is no row of the session, whatever the variant.
    labels = label_by_centroid(result, X)
    if result.prototypes is not None:
        return labels
    own = (memory or {}).get(_OWN)
    if own is None:
        return np.full(len(labels), -1, dtype=np.int64)
    rows, known = np.asarray(X, dtype=np.float64), labels >= 0
    if result.impute is not None:
        rows = np.where(np.isnan(rows), result.impute, rows)
    if known.any():
        scaled = Space(result.center, result.scale).to_scaled(rows[known])
        labels[known] = _by_own_vectors(result, scaled, own)
    return labels


def _by_own_vectors(result: Result, scaled: FloatArray, own: Memory) -> IntArray:
    """Label scaled rows (n, d) at a site that remembers its ``own`` eigenvectors."""
    if own["rows"] == _digest(scaled):
        vectors = own["own"]
    else:
        known = Embedding(own["points"], own["vectors"], own["values"], own["scales"])
        placed = nystroem(known, scaled, gamma=own["gamma"], neighbours=own["neighbours"])
        vectors = placed @ own["turn"]
    extra = result.extra
    return np.asarray(extra["clusters"][nearest(vectors, extra["centres"])])


METHOD = Method(
    name="spectral",
    version=VERSION,
    title="Federated spectral clustering (clusters of any shape)",
    citation=(
        "E. Hernandez-Pereira, O. Fontenla-Romero, B. Guijarro-Berdinas, B. Perez-Sanchez, "
        "Federated learning approach for spectral clustering, ESANN 2021"
    ),
    options=Config,
    default_max_rounds=100,
    joins_late=True,
    state=State,
    phases=PHASES,
    check_config=check_config,
    start=start,
    local_step=local_step,
    check=check,
    aggregate=aggregate,
    finish=finish,
    label=label,
    label_new=label,
)
