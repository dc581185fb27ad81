"""One bad site: it may move neither scale nor clusters of the honest ones, and it is named."""

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from fedclust import SessionResult, rounds, simulate
from fedclust.rounds import preparation
from fedclust.schema.result import Result
from fedclust.schema.task import Contribution
from support.driven import drive, plan_for
from support.points import violation

FloatArray = NDArray[np.float64]
CENTRES = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 9.0]])
LABELS = np.repeat(np.arange(4), 15)


def honest(seed: int = 0) -> dict[str, FloatArray]:
    rng = np.random.default_rng(seed)
    return {name: CENTRES[LABELS] + rng.normal(size=(60, 2)) for name in ("a", "b", "c", "d")}


def corners(n: int) -> FloatArray:
    return 1e3 * np.random.default_rng(1).choice([-1.0, 1.0], (n, 2))


BAD = {
    "3 % at 1e6": np.full((8, 2), 1e6),
    "few at 1e9": np.full((5, 2), 1e9),
    "corners": corners(8),
}


def run(
    sites: dict[str, FloatArray], method: str = "lloyd", protection: str = "none", **options: Any
) -> SessionResult:
    policy = {"protection": protection, **options}
    return simulate(method, sites, config={"n_clusters": 4}, policy=policy)


@cache
def undisturbed(method: str, protection: str) -> Result:
    """Return the result of the honest sites alone."""
    return run(honest(), method, protection).result


# The sites' scale is found before the method's rounds: others than `lloyd` follow from it.
@pytest.mark.parametrize(
    ("case", "method", "protection"),
    [
        *itertools.product(BAD, ["lloyd"], ["none", "groups"]),
        *itertools.product(["corners"], ["fkm", "kfed"], ["groups"]),
    ],
)
def test_the_honest_clusters_stay_and_the_bad_site_is_named(
    case: str, method: str, protection: str
) -> None:
    found = run({**honest(), "odd": BAD[case]}, method, protection)
    own = np.concatenate([found.labels_[name] for name in "abcd"])
    assert adjusted_rand_score(np.tile(LABELS, 4), own) >= 0.95
    (warning,) = [line for line in found.result.warnings if "stands apart" in line]
    assert "'odd'" in warning
    assert "'x0', 'x1'" in warning
    assert "000" not in warning
    alone = undisturbed(method, protection)
    np.testing.assert_allclose(found.result.scale, alone.scale, rtol=1e-9)
    np.testing.assert_allclose(found.result.center, alone.center, atol=1e-9)
    assert (np.abs(found.result.centroids) <= 3.0).all()


def test_where_sites_agree_the_scale_is_that_of_the_merged_moments() -> None:
    """One cluster a site, and sites of very different sizes: nobody stands apart."""
    rng = np.random.default_rng(2)
    sites = {
        name: centre + rng.normal(size=(n, 2))
        for name, centre, n in zip("abcd", CENTRES, (5, 300, 20, 40), strict=True)
    }
    found = run(sites).result
    rows = np.concatenate(list(sites.values()))
    np.testing.assert_allclose(found.center, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.scale, rows.std(axis=0), rtol=1e-12)
    assert found.limit.tolist() == [100.0, 100.0]
    assert not any("stands apart" in line for line in found.warnings)


def test_most_sites_with_one_value_make_no_other_stand_apart() -> None:
    sites = {name: np.column_stack([rows[:, 0], rows[:, 1] * 0]) for name, rows in honest().items()}
    sites["d"][:, 1] = 7.0
    assert not any("stands apart" in line for line in run(sites).result.warnings)


def test_two_sites_cannot_tell_which_of_them_is_wrong() -> None:
    sites = {"a": honest()["a"], "odd": BAD["3 % at 1e6"]}
    assert not any("stands apart" in line for line in run(sites).result.warnings)


def test_shares_keep_their_bounds_and_weights_widen_the_limit() -> None:
    rng = np.random.default_rng(3)
    sites = {
        name: np.column_stack([rng.normal(size=40), rng.random(40) < 0.02]).astype(float)
        for name in "abc"
    }
    features = [{"name": "x", "weight": 4.0}, {"name": "rare", "kind": "binary"}]
    policy = {"protection": "none"}
    found = simulate("lloyd", sites, config={"n_clusters": 2}, features=features, policy=policy)
    result = found.result
    assert result.limit[0] == 200.0
    ones = (1.0 - result.center[1]) / result.scale[1]
    assert result.limit[1] == pytest.approx(ones)


def test_new_rows_count_within_the_same_limit() -> None:
    found = run({**honest(), "odd": BAD["3 % at 1e6"]})
    far, edge = np.array([[1e7, -1e7]]), np.array([[1e3, -1e3]])
    assert found.predict(far)[0] == found.predict(edge)[0] == found.labels_["a"][15]


def test_means_beyond_the_limit_are_refused_in_later_rounds() -> None:
    sites = {**honest(), "odd": BAD["3 % at 1e6"]}
    plan = plan_for(2, {"n_clusters": 4}, {"protection": "none"})
    opened = next(each for each in drive(plan, sites).rounds if each.phase == "lloyd")
    task, payload = opened.tasks["odd"], opened.payloads["odd"]
    rounds.check(plan, task, payload, p=1, size_band=None)
    beyond = payload.model_copy(
        update={"sums": payload.sums * 1.1, "costs": payload.costs + 1e3 * (payload.counts > 0)}
    )
    broken = violation(rounds.check, plan, task, beyond, p=1, size_band=None)
    assert broken.pointer.startswith("/sums")


def test_moments_that_are_made_up_move_nothing() -> None:
    plan = plan_for(2, {"n_clusters": 4}, {"protection": "none"})
    first = drive(plan, honest()).rounds[0]
    payloads = dict(first.payloads)
    lie = payloads["d"].model_copy(update={"mean": np.full(2, -1e200), "m2": np.full(2, 1e300)})
    config = rounds.coordinator._run_config(plan, first.state, "abcd", None)
    spaces = []
    for last in (lie, None):
        answers = [Contribution(s, payloads[s], 1) for s in "abc"] + [Contribution("d", last, 1)]
        space, warnings, _ = preparation.merge(answers, config)
        spaces.append((space.center, space.scale))
        assert len(warnings) == (last is not None)
    assert np.array_equal(spaces[0], spaces[1])
