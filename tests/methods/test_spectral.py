"""spectral: graphs, eigenvectors that agree, landmarks, and what is refused."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.manifold import spectral_embedding

from fedclust import rounds, simulate
from fedclust.methods import spectral
from fedclust.methods.spectral import METHOD
from fedclust.methods.spectral import graph as spectral_graph
from fedclust.methods.spectral.graph import cluster_landmarks, is_dense, matched_share
from fedclust.rounds.site import check_method_task
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.schema.feature import Feature
from fedclust.schema.run_config import Policy, RunConfig
from fedclust.schema.task import Contribution, Done, Points, SiteTask, row_points
from support.points import answer_task, check_answer, config_of, violation
from support.site_rows import agreement

Rows = dict[str, NDArray[np.float64]]
POLICY: dict[str, Any] = {"scaling": "none", "min_group_size": 5}


def _moons(
    n: int, n_sites: int, seed: int, shares: Any = None
) -> tuple[Rows, dict[str, NDArray[np.int64]]]:
    """Return two hooked moons, ``n`` rows each, over sites; ``shares`` (2, sites) if uneven."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0.0, np.pi, (2, n))
    moons = np.stack([np.cos(angle), np.sin(angle)], axis=2)
    moons[1] = [1.0, 0.5] - moons[1]
    moons += rng.normal(0.0, 0.05, moons.shape)
    even = np.full((2, n_sites), 1.0 / n_sites)
    cuts = np.round(np.cumsum(even if shares is None else shares, axis=1)[:, :-1] * n).astype(int)
    parts = [np.split(moon, cut) for moon, cut in zip(moons, cuts, strict=True)]
    sites = {f"s{i}": np.concatenate([parts[0][i], parts[1][i]]) for i in range(n_sites)}
    truth = {
        f"s{i}": np.repeat([0, 1], [len(parts[0][i]), len(parts[1][i])]) for i in range(n_sites)
    }
    return sites, truth


def _config(**options: Any) -> RunConfig:
    features = tuple(Feature(name=name, lower=-9, upper=9) for name in "xy")
    made = spectral.Config(**{"n_clusters": 2, **options}).root
    return config_of(made, features=features, min_sites=1)


# --- Graphs and eigenvectors ----------------------------------------------------------------------


def test_the_self_tuning_graph_follows_its_formula() -> None:
    points = np.random.default_rng(0).normal(size=(40, 3))
    graph = spectral_graph.self_tuning_graph(points, 4)[0].toarray()

    squares = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    order = np.argsort(squares, axis=1)[:, 1:5]
    scale = np.sqrt(squares[np.arange(40), order[:, -1]])
    edges = np.zeros((40, 40), dtype=bool)
    edges[np.arange(40)[:, None], order] = True
    wanted = np.where(edges | edges.T, np.exp(-squares / np.outer(scale, scale)), 0.0)
    np.testing.assert_allclose(graph, wanted, atol=1e-12)


@pytest.mark.parametrize("n", [300, 2_000])
def test_eigenvalues_belong_to_the_laplacian(n: int) -> None:
    """In a dense matrix and by inverse iteration."""
    sites, _ = _moons(n // 2, 1, 3)
    graph, _ = spectral_graph.self_tuning_graph(sites["s0"], 10)
    found = spectral_graph.spectrum(graph, 4, np.random.default_rng(0))

    roots = 1.0 / np.sqrt(graph.sum(axis=1))
    walk = graph.multiply(roots[:, None]).multiply(roots[None, :]).tocsr()
    residue = found.vectors - walk @ found.vectors - found.vectors * found.values
    assert np.abs(residue).max() < 1e-7
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(4), atol=1e-7)
    if n == 300:
        lowest = np.linalg.eigvalsh(np.eye(n) - walk.toarray())[:4]
        np.testing.assert_allclose(found.values, lowest, atol=1e-9)


def test_equal_eigenvalues_of_components_are_all_found() -> None:
    parts = [np.random.default_rng(i).normal(100.0 * i, 1.0, (30, 2)) for i in range(3)]
    graph, _ = spectral_graph.self_tuning_graph(np.concatenate(parts), 5)
    found = spectral_graph.spectrum(graph, 4, np.random.default_rng(0))

    assert (found.values[:3] == 0).all()
    assert found.values[3] > 0
    assert spectral_graph.eigengap(found.values, 3) == 1.0
    assert spectral_graph.eigengap(found.values, 2) == 0.0


def test_the_embedding_agrees_with_scikit_learn() -> None:
    X = _moons(60, 1, 1)[0]["s0"]
    _, vectors = spectral_graph.embed(X, 3, np.random.default_rng(0), gamma=20.0, neighbours=5)

    graph = spectral_graph.rbf_graph(X, 20.0).toarray()
    theirs = spectral_embedding(graph, n_components=3, drop_first=False, random_state=0)
    theirs *= np.sqrt(len(X)) / np.linalg.norm(theirs, axis=0)
    flips = spectral_graph.align_by_sign(theirs, vectors)
    np.testing.assert_allclose(vectors @ flips, theirs, atol=1e-5)
    np.testing.assert_allclose((vectors**2).sum(axis=0), len(X))


@pytest.mark.parametrize("gamma", [None, 30.0])
def test_nystroem_places_new_rows_near_similar_ones(gamma: float | None) -> None:
    X = _moons(200, 1, 5)[0]["s0"]
    rng = np.random.default_rng(0)
    known, vectors = spectral_graph.embed(X, 2, rng, gamma=gamma, neighbours=10)
    placed = spectral_graph.nystroem(known, X + 1e-6, gamma=gamma, neighbours=10)
    assert np.abs(placed - vectors).max() < 0.2
    # Far from all vertices weights vanish, but rows still get a place.
    assert np.isfinite(spectral_graph.nystroem(known, X + 1e4, gamma=gamma, neighbours=10)).all()


def test_nystroem_is_the_mean_of_neighbours_over_the_eigenvalue() -> None:
    X = _moons(50, 1, 5)[0]["s0"]
    known, vectors = spectral_graph.embed(X, 3, np.random.default_rng(0), gamma=9.0, neighbours=5)
    new = np.array([[0.3, 0.2], [1.5, -0.4]])
    weights = np.exp(-9.0 * ((new[:, None] - X[None]) ** 2).sum(axis=2))
    wanted = (weights / weights.sum(axis=1, keepdims=True)) @ vectors / known.values
    placed = spectral_graph.nystroem(known, new, gamma=9.0, neighbours=5)
    np.testing.assert_allclose(placed, wanted, atol=1e-9)


def test_a_sampled_rbf_graph_separates_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectral_graph, "MAX_RBF_POINTS", 400)
    sites, truth = _moons(1_000, 1, 2)
    basis, vectors = spectral_graph.embed(
        sites["s0"], 2, np.random.default_rng(0), gamma=50.0, neighbours=10
    )
    assert len(basis.points) == 400
    assert matched_share((vectors[:, 1] > 0).astype(np.int64), truth["s0"]) == 1.0


def test_alignment_reverts_signs_and_rotations() -> None:
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(6, 3))
    flips = np.diag([1.0, -1.0, -1.0])
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))

    np.testing.assert_array_equal(spectral_graph.align_by_sign(reference, reference @ flips), flips)
    one = spectral_graph.align_by_sign(reference[:1], reference[:1] @ flips)
    np.testing.assert_array_equal(one, flips)
    back = spectral_graph.align_by_rotation(reference, reference @ turn)
    np.testing.assert_allclose(reference @ turn @ back, reference, atol=1e-12)


# --- Landmarks ------------------------------------------------------------------------------------


def test_only_landmarks_between_thin_clusters_are_left_out() -> None:
    """Two lines of different density, and three means in the gap between them."""
    line = np.column_stack([np.linspace(0.0, 10.0, 101), np.zeros(101)])
    thin = np.column_stack([np.linspace(0.0, 10.0, 81), np.full(81, 2.0)])
    bridge = np.array([[2.0, 1.0], [5.0, 0.9], [8.0, 1.1]])
    kept = is_dense(np.concatenate([line, thin, bridge]))

    assert not kept[-3:].any()
    assert kept[2:99].all()
    assert kept[103:180].all()
    assert is_dense(line[:5]).all()


def test_few_points_are_landmarks_and_many_become_weighted_means() -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(30, 2))
    points = Points(X, rng.integers(5, 9, 30), np.zeros(2))
    task = SiteTask("landmarks", spectral.LandmarksTask(n_cells=200))
    sent = answer_task(METHOD, task, points, _config(), rng=rng)
    order, theirs = np.lexsort(X.T), np.lexsort(sent.means.T)
    np.testing.assert_allclose(sent.means[theirs], X[order])
    np.testing.assert_array_equal(sent.counts[theirs], points.sizes[order])

    few = SiteTask("landmarks", spectral.LandmarksTask(n_cells=7))
    sent = answer_task(METHOD, few, points, _config(), rng=rng)
    assert len(sent.counts) == 7
    nearest = ((X[:, None] - sent.means) ** 2).sum(axis=2).argmin(axis=1)
    for cell in range(7):
        own = nearest == cell
        assert sent.counts[cell] == points.sizes[own].sum()
        mean = np.average(X[own], axis=0, weights=points.sizes[own])
        np.testing.assert_allclose(sent.means[cell], mean, atol=1e-9)


def test_a_site_sends_no_more_landmarks_than_half_its_rows() -> None:
    rng, config = np.random.default_rng(3), replace(_config(), p=1)
    for n, most in ((1, 1), (9, 4), (40, 20)):
        points = row_points(rng.normal(size=(n, 2)))
        task = SiteTask("landmarks", spectral.LandmarksTask(n_cells=200))
        sent = answer_task(METHOD, task, points, config, rng=rng)
        assert len(sent.counts) == most


def test_a_neighbour_count_with_unstable_components_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sparsest graph has K components by accident; denser ones agree on other clusters."""
    points = np.random.default_rng(0).normal(size=(40, 2))
    accidental, stable = np.repeat([0, 1], [3, 37]), np.repeat([0, 1], 20)
    found = iter([(1.0, accidental), (0.8, stable), (0.7, stable), (0.1, accidental)])
    outcome: list[Any] = []

    def next_spectrum(*_: Any) -> Any:
        outcome[:] = next(found)
        return SimpleNamespace(values=np.zeros(3), vectors=np.zeros((40, 3)))

    monkeypatch.setattr(spectral_graph, "spectrum", next_spectrum)
    monkeypatch.setattr(spectral_graph, "eigengap", lambda *_: outcome[0])
    monkeypatch.setattr(spectral_graph, "_cluster_vectors", lambda *_: outcome[1])
    chosen = cluster_landmarks(points, 2, np.random.default_rng(0), counts=(3, 4, 5, 6))
    assert (chosen.neighbours, chosen.gap) == (4, 0.8)
    np.testing.assert_array_equal(chosen.labels, stable)


# --- Sessions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("uneven", [False, True])
def test_landmarks_find_moons_for_any_split_over_sites(uneven: bool) -> None:
    shares = [[0.6, 0.3, 0.05, 0.05], [0.02, 0.08, 0.3, 0.6]] if uneven else None
    sites, truth = _moons(400, 4, 0, shares)
    result = simulate("spectral", sites, config={"n_clusters": 2}, policy=POLICY, seed=1)

    assert agreement(result, truth) == 1.0
    assert result.warnings_ == ()
    assert result.sizes_ is not None
    assert result.quality_.simplified_silhouette is None
    # A late site's rows, and new ones, go by the landmarks.
    late, known = _moons(50, 1, 9)
    assert matched_share(result.predict(late["s0"]), known["s0"]) == 1.0


@pytest.mark.parametrize("alignment", ["sign", "procrustes"])
def test_eigenvectors_agree_where_sites_hold_all_clusters(alignment: str) -> None:
    sites, truth = _moons(600, 4, 0)
    config = {"n_clusters": 2, "alignment": alignment, "gamma": 50.0}
    result = simulate("spectral", sites, config=config, policy=POLICY, seed=1)

    assert agreement(result, truth) == 1.0
    assert result.sizes_ == (600, 600)
    # Nobody but a site that took part has eigenvectors.
    assert (result.predict(sites["s0"]) == -1).all()
    asked = [e for e in result.trace_ if e.phase == "anchors" and e.payload.counts.any()]
    assert [e.site for e in asked] == ["s0"]
    assert (asked[0].payload.counts[: 1 if alignment == "sign" else 2] >= 5).all()


def test_a_site_labels_new_rows_by_nystroem() -> None:
    sites, truth = _moons(400, 3, 0)
    config = {"n_clusters": 2, "alignment": "sign", "gamma": 50.0}
    result = simulate("spectral", sites, config=config, policy=POLICY, seed=0)
    new, known = _moons(40, 1, 8)
    found = np.append(result.labels_["s1"], result.predict(new["s0"], site="s1"))
    assert matched_share(found, np.append(truth["s1"], known["s0"])) == 1.0


def test_missing_clusters_get_a_warning() -> None:
    rng = np.random.default_rng(0)
    sites = {name: rng.normal(size=(150, 2)) for name in "abc"}
    result = simulate("spectral", sites, config={"n_clusters": 4}, policy=POLICY)
    assert any("may be wrong" in warning for warning in result.warnings_)


def test_sites_whose_clusters_fall_together_get_a_warning() -> None:
    rng = np.random.default_rng(0)
    means = np.array([[0.0, 1.0], [2.0, 3.0]])
    agreeing = np.array([[1.0, 1.0], [1.0, -1.0]])
    config = replace(_config(alignment="none"), policy=Policy(min_sites=2, scaling="none"))

    def warnings_of(vectors: NDArray[np.float64]) -> tuple[str, ...]:
        sent = [
            Contribution(name, spectral.Eigen(counts=np.array([9, 9]), means=means, vectors=v), 5)
            for name, v in zip("ab", (agreeing, vectors), strict=True)
        ]
        state, _ = spectral.start(config, 0)
        outcome = spectral.aggregate(state, sent, config)
        assert isinstance(outcome, Done)
        return outcome.result.warnings

    assert warnings_of(agreeing + 0.01 * rng.normal(size=(2, 2))) == ()
    (warning,) = warnings_of(np.array([[1.0, 1.0], [1.0, 0.9]]))
    assert "50% of the sites" in warning


def test_the_result_does_not_reveal_the_sites_of_landmarks() -> None:
    sites, _ = _moons(300, 3, 0)
    result = simulate("spectral", sites, config={"n_clusters": 2}, policy=POLICY).result
    order = np.lexsort(result.prototypes.T[::-1])
    np.testing.assert_array_equal(order, np.arange(len(order)))
    assert set(result.extra) == {"neighbours", "eigengap", "agreement"}


def test_another_reference_is_asked_if_the_first_is_too_small() -> None:
    sites, truth = _moons(300, 3, 0)
    sites["a"], truth["a"] = np.zeros((1, 2)), np.zeros(1, dtype=np.int64)
    config = {"n_clusters": 2, "alignment": "sign", "gamma": 50.0}
    result = simulate("spectral", sites, config=config, policy=POLICY)
    asked = [e.round for e in result.trace_ if e.phase == "anchors" and e.site == "s0"]
    assert len(set(asked)) == 2
    assert (result.labels_["a"] == -1).all()
    with pytest.raises(MethodFailure, match="max_rounds"):
        simulate("spectral", sites, config=config, policy={**POLICY, "max_rounds": 2})


def test_fewer_landmarks_than_clusters_are_clusters_of_their_own() -> None:
    sites = {name: np.random.default_rng(i).normal(size=(6, 2)) for i, name in enumerate("abc")}
    result = simulate("spectral", sites, config={"n_clusters": 5}, policy=POLICY)
    assert len(result.cluster_centers_) == 3
    assert any("3 distinct centroids" in warning for warning in result.warnings_)


# --- Refusals -------------------------------------------------------------------------------------


def test_more_landmarks_than_asked_for_are_refused() -> None:
    task = SiteTask("landmarks", spectral.LandmarksTask(n_cells=2))
    two, three = (spectral.Landmarks(counts=np.full(n, 9), means=np.zeros((n, 2))) for n in (2, 3))
    check_answer(METHOD, task, two, _config())
    broken = violation(check_answer, METHOD, task, three, _config())
    assert (broken.rule, broken.pointer) == ("shape", "/counts")


def _eigen_task(n: int, k: int = 2) -> spectral.EigenTask:
    return spectral.EigenTask(anchors=np.zeros((n, 2)), vectors=np.zeros((n, k)))


def _check_task(task: SiteTask, config: RunConfig) -> None:
    check_method_task(METHOD, rounds.phase(METHOD, task.phase), task, config, 0, first=False)


@pytest.mark.parametrize(
    ("options", "phase", "task"),
    [
        ({}, "landmarks", spectral.LandmarksTask(n_cells=201)),
        ({"alignment": "none"}, "eigen", _eigen_task(1)),
        ({"alignment": "sign"}, "anchors", spectral.AnchorsTask(n_anchors=2)),
        ({"alignment": "sign"}, "eigen", spectral.EigenTask()),
        ({"alignment": "sign"}, "eigen", _eigen_task(1, 3)),
    ],
)
def test_a_task_beyond_the_definition_is_refused(
    options: dict[str, Any], phase: str, task: Any
) -> None:
    broken = violation(_check_task, SiteTask(phase, task), _config(**options))
    assert broken.rule in ("task", "shape")
    # Without alignment there are no anchors.
    _check_task(SiteTask("eigen", spectral.EigenTask()), _config(alignment="none"))


def _anchors(counts: Any, means: Any, vectors: Any) -> spectral.Anchors:
    return spectral.Anchors(
        counts=np.array(counts), means=np.array(means, float), vectors=np.array(vectors, float)
    )


@pytest.mark.parametrize(
    ("sent", "reference", "rule"),
    [
        (_anchors([6], [[1, 2]], [[1, 1]]), False, "anchors"),
        (_anchors([6], [[1, 2, 3]], [[1, 1]]), True, "shape"),
        (_anchors([6], [[1, 2]], [[1, 1, 1]]), True, "shape"),
        (_anchors([0], [[0, 0]], [[1, 1]]), True, "empty-cell"),
    ],
)
def test_inconsistent_anchors_are_refused(
    sent: spectral.Anchors, reference: bool, rule: str
) -> None:
    config = _config(alignment="sign")
    part = spectral.AnchorPart(anchors=reference)
    task = SiteTask("anchors", spectral.AnchorsTask(n_anchors=1), part)
    check_answer(
        METHOD,
        replace(task, site=part.model_copy(update={"anchors": True})),
        _anchors([6], [[1, 2]], [[1, 1]]),
        config,
    )
    assert violation(check_answer, METHOD, task, sent, config).rule == rule


def test_impossibly_large_eigenvectors_are_refused() -> None:
    config = _config(alignment="sign")
    task = SiteTask("eigen", spectral.EigenTask())
    fields: dict[str, Any] = {"counts": np.array([10, 10]), "means": np.ones((2, 2))}
    check_answer(METHOD, task, spectral.Eigen(vectors=np.ones((2, 2)), **fields), config)
    with pytest.raises(RuleViolation, match="eigenvectors"):
        check_answer(METHOD, task, spectral.Eigen(vectors=np.full((2, 2), 9.0), **fields), config)


def test_the_order_of_sites_in_a_round_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(10.0 * k, 1.0, (20, 2)) for k in range(2)])
    config = replace(_config(), policy=Policy(min_sites=2, scaling="none"))
    halves = [points[::2], points[1::2]]
    outcomes = []
    for order in ((0, 1), (1, 0)):
        sent = [
            Contribution(name, spectral.Landmarks(counts=np.full(20, 5), means=halves[half]), 5)
            for name, half in zip("ab", order, strict=True)
        ]
        state, _ = spectral.start(config, 3)
        outcome = spectral.aggregate(state, sent, config)
        assert isinstance(outcome, Done)
        outcomes.append(outcome.result)
    np.testing.assert_array_equal(outcomes[0].prototypes, outcomes[1].prototypes)
    assert outcomes[0].prototype_labels == outcomes[1].prototype_labels


def test_equal_rows_may_lie_far_out_among_eigenvectors() -> None:
    """The graph has distinct rows: three equal ones are one vertex, and their mean is its entry."""
    sites = {
        "a": np.zeros((1, 3)),
        "b": np.zeros((1, 3)),
        "c": np.array([[0.0, 1.0, 0.0], *[[0.0, 1.0, 2.5]] * 3]),
    }
    policy = {"protection": "none", "min_sites": 1, "scaling": "none"}
    config = {"n_clusters": 2, "alignment": "sign"}
    result = simulate("spectral", sites, config=config, policy=policy, seed=0)
    assert set(result.labels_["c"][1:]) != set(result.labels_["c"][:1])
