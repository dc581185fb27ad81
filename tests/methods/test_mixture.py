"""mixture: the EM of scikit-learn and of plain latent classes, step by step, over sites."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.datasets import load_iris
from sklearn.mixture import GaussianMixture

from fedclust import simulate
from fedclust.methods.mixture import METHOD
from fedclust.methods.mixture.model import (
    Classes,
    Config,
    EMTask,
    Partition,
    PartitionTask,
    Weighted,
    draw_persons,
    loss_warning,
)
from fedclust.numeric.random import site_rng
from fedclust.rounds import Plan
from fedclust.rounds.site import check_method_task
from fedclust.rounds.stages import phase as find_phase
from fedclust.schema.encoding import Space
from fedclust.schema.errors import RuleViolation
from fedclust.schema.feature import Feature
from fedclust.schema.model import Memory
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Points, SiteTask, row_points
from support.driven import Run, drive
from support.points import answer_task, check_answer, config_of, of_rows, violation

FloatArray = NDArray[np.float64]
OPEN = {"protection": "none", "min_sites": 1}
IRIS = load_iris().data
LEVELS = ("low", "middle", "high")
MIXED = (
    Feature(name="age"),
    Feature(name="smoker", kind="binary"),
    Feature(name="grade", kind="categorical", levels=LEVELS),
)


# --- equal to EM in one place ---------------------------------------------------------------------


@pytest.mark.parametrize("scaling", ["none", "standard"])
def test_rows_give_what_scikit_learn_gives(scaling: str) -> None:
    steps = 40
    start = IRIS[[10, 60, 120]]
    sites = {"a": IRIS[::3], "b": IRIS[1::3], "c": IRIS[2::3]}
    result = simulate(
        "mixture",
        sites,
        config={"n_clusters": 3, "start": "given", "centroids": start.tolist(), "tol": 0.0},
        policy={**OPEN, "scaling": scaling, "max_rounds": steps + 2},
    ).result
    X, first = result.space.to_scaled(IRIS), result.space.to_scaled(start)
    nearest = ((X[:, None] - first) ** 2).sum(axis=2).argmin(axis=1)
    parts = [X[nearest == k] for k in range(3)]
    expected = GaussianMixture(
        3,
        covariance_type="diag",
        weights_init=[len(part) / len(X) for part in parts],
        means_init=[part.mean(axis=0) for part in parts],
        precisions_init=[1.0 / (part.var(axis=0) + 1e-6) for part in parts],
        tol=0.0,
        max_iter=steps,
    )
    with pytest.warns(UserWarning, match="did not converge"):
        expected.fit(X)
    order = np.lexsort(expected.means_.T[::-1])
    soft = result.soft
    close = {"rtol": 0.0, "atol": 1e-8}
    np.testing.assert_allclose(result.centroids, expected.means_[order], **close)
    np.testing.assert_allclose(soft["variances"], expected.covariances_[order], **close)
    np.testing.assert_allclose(soft["proportions"][:, 0], expected.weights_[order], **close)
    fit = result.likelihood
    # Of the scaled rows, converted to own units.
    jacobian = len(X) * np.log(result.space.scale).sum()
    assert fit.log_likelihood == pytest.approx(expected.score(X) * len(X) - jacobian, abs=1e-8)
    assert fit.bic == pytest.approx(expected.bic(X) + 2.0 * jacobian, abs=1e-8)
    assert (fit.n_parameters, fit.n_rows) == (26, 150)
    certainty = expected.predict_proba(X)
    entropy = -(certainty * np.log(np.maximum(certainty, 1e-300))).sum()
    assert fit.relative_entropy == pytest.approx(1.0 - entropy / (150 * np.log(3)), abs=1e-8)
    assert fit.icl == pytest.approx(fit.bic + 2.0 * entropy, abs=1e-7)


def mixed_rows(n: int, seed: int) -> FloatArray:
    """Return rows of ``MIXED``, encoded: two classes that differ in all features."""
    rng = np.random.default_rng(seed)
    of = rng.integers(0, 2, n)
    grades = [rng.choice(3, p=(0.6, 0.3, 0.1) if k else (0.1, 0.2, 0.7)) for k in of]
    yes = rng.random(n) < np.where(of, 0.8, 0.2)
    return np.column_stack([rng.normal(3.0 * of, 1.0 + of), yes, np.eye(3)[grades]])


def plain_em(
    sites: list[FloatArray], start: FloatArray, steps: int, *, by_site: bool
) -> tuple[float, FloatArray, FloatArray]:
    """Return log-likelihood, probabilities of smoker and grades (K, 4), and proportions.

    EM as textbooks write it: a normal, a Bernoulli and a multinomial variable, row by row.
    """
    X = np.concatenate(sites)
    at = np.repeat(np.arange(len(sites)), [len(rows) for rows in sites])
    k = len(start)
    r = np.eye(k)[((X[:, None] - start) ** 2).sum(axis=2).argmin(axis=1)]
    likelihood, shares, proportions = 0.0, np.empty(0), np.tile(r.mean(axis=0), (len(sites), 1))
    for step in range(steps):
        n = r.sum(axis=0)
        mean = r.T @ X[:, 0] / n
        variance = np.array([r[:, j] @ (X[:, 0] - mean[j]) ** 2 / n[j] for j in range(k)])
        shares = r.T @ X[:, 1:] / n[:, None]
        if by_site and step:
            proportions = np.stack([r[at == s].mean(axis=0) for s in range(len(sites))])
        elif not by_site:
            proportions = np.tile(r.mean(axis=0), (len(sites), 1))
        joint = proportions[at].copy()
        for j in range(k):
            joint[:, j] *= np.exp(-0.5 * (X[:, 0] - mean[j]) ** 2 / variance[j])
            joint[:, j] /= np.sqrt(2.0 * np.pi * variance[j])
            joint[:, j] *= np.where(X[:, 1] == 1, shares[j, 0], 1.0 - shares[j, 0])
            joint[:, j] *= X[:, 2:] @ shares[j, 1:]
        likelihood = float(np.log(joint.sum(axis=1)).sum())
        r = joint / joint.sum(axis=1, keepdims=True)
    return likelihood, shares, proportions


@pytest.mark.parametrize("proportions", ["common", "by_site"])
def test_yes_no_and_levels_are_latent_classes(proportions: str) -> None:
    sites = [mixed_rows(90, 1), mixed_rows(60, 2)[:45], mixed_rows(75, 3)]
    start = np.array([[0.0, 0, 0, 0, 1], [3.0, 1, 1, 0, 0]])
    options = Config(
        n_clusters=2, start="given", centroids=start, tol=0.0, reg_covar=0.0,
        proportions=proportions,
    )  # fmt: skip
    config = config_of(options, p=1, features=MIXED, protection="none")
    run = session(config, [row_points(X) for X in sites], 9)
    likelihood, shares, expected = plain_em(sites, start, 8, by_site=proportions == "by_site")
    result = run.result
    assert result.likelihood.log_likelihood == pytest.approx(likelihood, abs=1e-8)
    np.testing.assert_allclose(result.centroids_original[:, 1:], shares, atol=1e-8)
    common = result.soft["proportions"][:, 0]
    own = [memory.get("proportions", common) for memory in run.memory.values()]
    np.testing.assert_allclose(own, expected, atol=1e-8)
    # Mean, variance, a probability, and two of three levels; and the proportions.
    assert result.likelihood.n_parameters == 2 * 5 + (3 if proportions == "by_site" else 1)


def session(config: RunConfig[Config], sites: list[Points], n: int) -> Run:
    """Run a session of ``n`` rounds of the method."""
    changes = {"max_rounds": n, "missing": "drop", "min_sites": 1}
    policy = config.policy.model_copy(update=changes)
    plan = Plan(METHOD, config.options, config.features, policy, seed=0)
    return drive(plan, {f"site{number}": each for number, each in enumerate(sites)})


# --- groups of persons ----------------------------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn) -> tuple[RunConfig[Config], list[Points]]:
    """Draw sites' points in columns of numbers: for answers of groups, further persons count."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    options = Config(
        n_clusters=draw(st.integers(1, 4)),
        reg_covar=0.0,
        tol=0.0,
        evaluate=False,
        proportions=draw(st.sampled_from(("common", "by_site"))),
    )
    sites = []
    for _ in range(draw(st.integers(1, 3))):
        of = rng.integers(0, 2, draw(st.integers(2, 20)))
        X = rng.normal(of[:, None], 0.5, (len(of), 3))
        sites.append(Points(X, rng.integers(5, 12, len(X)), np.zeros(3)))
    return config_of(options, d=3), sites


@settings(max_examples=25)
@given(tables())
def test_the_log_likelihood_never_falls(drawn: tuple[RunConfig[Config], list[Points]]) -> None:
    config, sites = drawn
    run = session(config, sites, 14)
    asked = [opened.payloads.values() for opened in run.rounds if opened.phase == "em"]
    found = np.array([sum(sent.log_likelihood for sent in answers) for answers in asked])
    # A class of one record with one value has no variance left: its likelihood has no bound.
    found = found[: int(np.argmax(np.append(found, np.inf) > 1e3))]
    assert (np.diff(found) >= -1e-9 * (1.0 + np.abs(found[:-1]))).all()


def test_artificial_persons_find_the_spread_of_the_classes() -> None:
    rng = np.random.default_rng(4)
    rows = np.concatenate([rng.normal(0.0, 1.0, (400, 4)), rng.normal(4.0, 2.0, (400, 4))])
    points = of_rows(rows)
    start = np.array([[0.0] * 4, [4.0] * 4])
    config = config_of(Config(n_clusters=2, start="given", centroids=start), d=4)
    open_config = replace(config, policy=config.policy.model_copy(update={"protection": "none"}))
    deviations, records = (
        np.sqrt(session(each, [points], 12).result.soft["variances"]).mean(axis=1)
        for each in (config, open_config)
    )
    np.testing.assert_allclose(deviations, [1.0, 2.0], rtol=0.1)
    # Records alone are more alike than persons.
    assert (records < 0.95 * deviations).all()


def drawn(points: Points, numbers: list[bool]) -> tuple[FloatArray, FloatArray]:
    return draw_persons(points, np.array(numbers), np.random.default_rng(1))


def test_artificial_persons_add_up_to_persons_and_keep_answers() -> None:
    X = np.column_stack([np.arange(40.0), np.arange(40) % 2])
    points = Points(X, np.arange(40) % 5 + 5, np.zeros(2))
    persons, weights = drawn(points, [True, False])
    assert len(persons) == 5 * points.n
    assert weights.sum() == pytest.approx(points.n)
    np.testing.assert_array_equal(persons[:, 1], np.repeat(X[:, 1], 5 * points.sizes))
    np.testing.assert_allclose(
        np.average(persons, axis=0, weights=weights),
        np.average(X, axis=0, weights=points.sizes),
        atol=0.2,
    )
    # Without numbers there is nothing to draw.
    assert drawn(points, [False, False])[0] is X


def test_groups_of_a_tight_class_get_tight_persons() -> None:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(0.0, 0.1, (60, 3)), rng.normal(30.0, 3.0, (60, 3))])
    points = Points(X, np.full(120, 5), np.zeros(3))
    apart = drawn(points, [True] * 3)[0] - np.repeat(X, 25, axis=0)
    assert apart[: 60 * 25].std() < 0.2 < 0.5 < apart[60 * 25 :].std()


def test_one_group_and_equal_records_stay_as_they_are() -> None:
    one = Points(np.array([[3.0]]), np.array([7]), np.zeros(1))
    persons, weights = drawn(one, [True])
    assert (persons.tolist(), weights.tolist()) == ([[3.0]], [7.0])
    equal = Points(np.full((4, 1), 3.0), np.full(4, 6), np.zeros(1))
    persons, weights = drawn(equal, [True])
    assert set(persons.ravel()) == {3.0}
    assert weights.sum() == pytest.approx(24)


def test_a_large_site_draws_fewer_persons_with_larger_weights() -> None:
    rng = np.random.default_rng(0)
    points = Points(rng.normal(size=(11_000, 2)), np.full(11_000, 6), np.zeros(2))
    persons, weights = drawn(points, [True, True])
    assert len(persons) <= 50_000
    assert weights.sum() == pytest.approx(66_000)


def test_artificial_persons_stay_within_bounds_and_are_the_same_in_all_rounds() -> None:
    features = (Feature(name="x", lower=0, upper=1),)
    config = config_of(Config(n_clusters=1), features=features)
    points = Points(np.array([[0.0], [0.0], [1.0], [1.0]]), np.full(4, 5), np.zeros(1))
    one = np.ones((1, 1))
    task = SiteTask("em", EMTask(centroids=one / 2, variances=one, proportions=np.ones(1)))
    memory: Memory = {}
    rng = site_rng(0, "a", 3)
    first = answer_task(METHOD, task, points, config, rng=rng, memory=memory)
    again = replace(points)
    assert not again.derived
    rng = site_rng(0, "a", 4)
    second = answer_task(METHOD, task, again, config, rng=rng, memory=memory)
    assert isinstance(first, Weighted)
    assert isinstance(second, Weighted)
    np.testing.assert_array_equal(first.squares, second.squares)
    # Beyond the bounds, the squares would be larger than those of 20 persons at the bounds.
    assert float(first.squares[0, 0]) <= 20 * 0.25


# --- sessions -------------------------------------------------------------------------------------


def hospitals(seed: int = 0) -> dict[str, FloatArray]:
    """Return a tight and a wide class around one place, and where one of them is rare."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, n_tight in (("a", 160), ("b", 100), ("c", 40)):
        tight = rng.normal(0.0, 0.3, (n_tight, 2))
        found[name] = np.concatenate([tight, rng.normal(1.5, 2.0, (200 - n_tight, 2))])
    return found


def test_persons_are_labelled_by_the_most_probable_class() -> None:
    result = simulate("mixture", hospitals(), config={"n_clusters": 2})
    found = {site: result.probabilities(rows) for site, rows in hospitals().items()}
    for site, probabilities in found.items():
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
        np.testing.assert_array_equal(probabilities.argmax(axis=1), result.labels_[site])
    # Beyond the tight class on both sides: no centroid could give this.
    assert result.predict([[0.0, 0.0], [2.5, 2.5], [-2.5, -2.5]]).tolist() == [0, 1, 1]
    assert sum(result.sizes_) == 600
    sizes = np.sum([np.bincount(own, minlength=2) for own in result.labels_.values()], axis=0)
    np.testing.assert_allclose(result.sizes_, sizes, atol=40)


def test_a_site_labels_by_its_own_proportions() -> None:
    policy = {"protection": "none", "min_sites": 3, "max_rounds": 30}
    sites = hospitals()
    for n_clusters in (2, [2, 3]):
        config = {"n_clusters": n_clusters, "proportions": "by_site"}
        result = simulate("mixture", sites, config=config, policy=policy)
        result = result if n_clusters == 2 else result.at(2)
        counts = [np.bincount(own, minlength=2) for own in result.labels_.values()]
        assert result.sizes_ == tuple(np.sum(counts, axis=0))
        place = [[0.6, 0.6]]
        of = {site: result.probabilities(place, site=site)[0, 0] for site in sites}
        assert of["a"] > of["b"] > of["c"]
        assert of["a"] > result.probabilities(place)[0, 0] > of["c"]


def test_the_lowest_bic_is_recommended() -> None:
    rng = np.random.default_rng(1)
    # The silhouette of two classes of the same mean is poor for every K.
    sites = {
        name: np.concatenate([rng.normal(0, 0.3, (90, 2)), rng.normal(0, 3.0, (90, 2))])
        for name in "abc"
    }
    policy = {"protection": "none", "max_rounds": 30}
    result = simulate("mixture", sites, config={"n_clusters": [2, 3, 4]}, policy=policy)
    assert result.result.n_clusters == 2
    assert "BIC" in (result.result.recommendation or "")


def test_weights_of_features_are_said_to_have_no_effect() -> None:
    features = [{"name": "x", "weight": 3.0}, {"name": "y"}]
    given = {"config": {"n_clusters": 2}, "policy": {"max_rounds": 5}}
    result = simulate("mixture", hospitals(), features=features, **given)
    assert any("weights count in the first partition alone" in each for each in result.warnings_)


def flags(n: int, share: float) -> dict[str, FloatArray]:
    """Return ten sites of ``n`` persons: ten yes/no answers, 3 % or ``share`` of them yes."""
    rng = np.random.default_rng(2)
    y = rng.random((10, n)) < 0.3
    shares = np.where(y, share, 0.03)[:, :, None]
    rows = (rng.random((10, n, 10)) < shares).astype(float)
    return {f"site{number}": each for number, each in enumerate(rows)}


@pytest.mark.parametrize(
    ("share", "protection", "warned"),
    [(0.3, "groups", True), (0.95, "groups", False), (0.3, "none", False)],
)
def test_a_result_warns_where_groups_lose_the_classes(
    share: float, protection: str, warned: bool
) -> None:
    features: list[dict[str, Any]] = [{"name": f"flag{j}", "kind": "binary"} for j in range(10)]
    given = {"config": {"n_clusters": 2}, "policy": {"protection": protection}}
    result = simulate("mixture", flags(60, share), features=features, **given)
    assert any("cost these classes much" in each for each in result.warnings_) == warned


def test_the_simulation_of_a_loss_takes_features_of_all_kinds() -> None:
    config = config_of(Config(n_clusters=2), features=MIXED, space=Space.identity(5))
    classes = Classes(
        proportions=np.array([0.5, 0.5]),
        means=np.array([[0.0, 0.1, 0.8, 0.1, 0.1], [9.0, 0.9, 0.1, 0.1, 0.8]]),
        variances=np.ones((2, 5)),
    )
    assert loss_warning(classes, [(300, 5), (6000, 5)], config, 0) == ()


# --- checks ---------------------------------------------------------------------------------------

CONFIG = config_of(Config(n_clusters=2), features=(Feature(name="x", lower=0, upper=10), MIXED[1]))
FIRST = SiteTask("partition", PartitionTask(centroids=np.array([[1.0, 0.0], [9.0, 1.0]])))
PARTITION = Partition(
    counts=np.array([9, 6]),
    offsets=np.array([[3.0, 4.0], [-2.0, -1.0]]),
    squares=np.array([[8.0, 0.0], [2.0, 0.0]]),
)
EM = SiteTask(
    "em",
    EMTask(
        centroids=np.array([[1.0, 0.4], [9.0, 0.8]]),
        variances=np.ones((2, 2)),
        proportions=np.array([0.6, 0.4]),
    ),
)
WEIGHTED = Weighted(
    totals=np.array([8.5, 6.5]),
    offsets=np.array([[3.0, 1.0], [-2.0, -1.0]]),
    squares=np.array([[8.0, 0.0], [2.0, 0.0]]),
    log_likelihood=-40.0,
    entropy=3.0,
)


def test_honest_sums_pass() -> None:
    check_answer(METHOD, FIRST, PARTITION, CONFIG)
    check_answer(METHOD, EM, WEIGHTED, CONFIG)


@pytest.mark.parametrize(
    ("change", "rule", "pointer"),
    [
        ({"totals": np.array([8.5, 6.4])}, "totals", "/totals"),
        ({"totals": np.array([-1.0, 16.0])}, "totals", "/totals"),
        ({"totals": np.array([2.5, 1.5])}, "smallest-count", "/totals"),
        ({"totals": np.array([15.0])}, "shape", "/totals"),
        ({"offsets": np.array([[-9.0, 1.0], [-2.0, -1.0]])}, "bounds", "/offsets/0/0"),
        ({"offsets": np.array([[3.0, 1.0], [-2.0, 1.5]])}, "bounds", "/offsets/1/1"),
        ({"squares": np.array([[0.5, 0.0], [2.0, 0.0]])}, "spread", "/squares/0/0"),
        ({"squares": np.array([[8.0, 0.1], [2.0, 0.0]])}, "spread", "/squares/0/1"),
        ({"log_likelihood": 1.0}, "log-likelihood", "/log_likelihood"),
        ({"entropy": -0.1}, "entropy", "/entropy"),
        ({"entropy": 10.5}, "entropy", "/entropy"),
    ],
)
def test_false_sums_are_refused(change: dict[str, Any], rule: str, pointer: str) -> None:
    broken = violation(check_answer, METHOD, EM, WEIGHTED.model_copy(update=change), CONFIG)
    assert (broken.rule, broken.pointer) == (rule, pointer)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"counts": np.array([4, 11])}, "smallest-count"),
        ({"counts": np.array([15, 0])}, "bounds"),
        ({"offsets": np.array([[3.0, -0.1], [-2.0, -1.0]])}, "bounds"),
        ({"squares": np.array([[8.0, 0.0], [-2.0, 0.0]])}, "spread"),
    ],
)
def test_a_false_partition_is_refused(change: dict[str, Any], rule: str) -> None:
    broken = violation(check_answer, METHOD, FIRST, PARTITION.model_copy(update=change), CONFIG)
    assert broken.rule == rule


def test_a_size_band_holds_for_the_totals() -> None:
    banded = replace(CONFIG, size_band="<10")
    assert violation(check_answer, METHOD, EM, WEIGHTED, banded).rule == "size-band"


@pytest.mark.parametrize(
    "change",
    [
        {"variances": np.array([[1.0, 1.0], [0.0, 1.0]])},
        {"proportions": np.array([0.6, 0.5])},
        {"centroids": np.ones((3, 2))},
    ],
)
def test_a_task_that_is_no_mixture_is_refused(change: dict[str, Any]) -> None:
    asked = EM.common.model_copy(update=change)
    phase = find_phase(METHOD, "em")
    with pytest.raises(RuleViolation):
        check_method_task(METHOD, phase, SiteTask("em", asked), CONFIG, 0, first=False)
