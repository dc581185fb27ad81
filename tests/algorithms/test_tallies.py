"""One pass over the rows against sums that the test takes cell by cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust.algorithms import engine, lloyd
from fedclust.algorithms.assigning import STEP
from fedclust.algorithms.base import Feature, Memory, Policy, SiteData, SiteTask, Space
from fedclust.algorithms.engine import Plan
from fedclust.algorithms.rows import ArrayRows
from fedclust.algorithms.tallies import Tally, assign, tally
from fedclust.algorithms.totals import SitePart

ROWS = 2 * STEP + 77


def _by_hand(
    X: NDArray[Any], centroids: NDArray[Any], labels: NDArray[Any]
) -> tuple[list[int], NDArray[Any], NDArray[Any]]:
    counts = [int((labels == k).sum()) for k in range(len(centroids))]
    own = [X[labels == k].astype(np.float64) - centroids[k] for k in range(len(centroids))]
    return (
        counts,
        np.array([part.sum(axis=0) for part in own]),
        np.array([(part**2).sum(axis=0) for part in own]),
    )


def _equals(found: Tally, expected: tuple[list[int], NDArray[Any], NDArray[Any]]) -> None:
    counts, offsets, squares = expected
    assert found.counts.tolist() == counts
    scale = np.sqrt(squares * np.maximum(np.array(counts), 1)[:, None]) + 1e-300
    assert (np.abs(found.offsets - offsets) / scale).max() < 1e-12
    np.testing.assert_allclose(found.squares, squares, rtol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e8])
@pytest.mark.parametrize("apart", [3.0, 1e8])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_a_pass_gives_the_nearest_and_the_sums_about_them(
    kind: Any, apart: float, offset: float
) -> None:
    """Also where clusters lie far from the origin, or from each other: no digit is lost."""
    rng = np.random.default_rng(1)
    centres = offset + apart * rng.normal(size=(5, 4))
    X = (centres[rng.integers(0, 5, ROWS)] + rng.normal(size=(ROWS, 4))).astype(kind)
    centroids = centres + rng.normal(scale=0.2, size=(5, 4))

    labels, found = assign(ArrayRows(X), [centroids], by_column=True)[0]

    squares = ((X[:, None].astype(np.float64) - centroids) ** 2).sum(axis=2)
    chosen = squares[np.arange(ROWS), labels]
    # What lies between two centroids to rounding may go to either.
    assert (chosen <= squares.min(axis=1) * (1 + 1e-9) + 1e-12 * apart**2).all()
    _equals(found, _by_hand(X, centroids, labels))


def test_equal_centroids_leave_all_rows_to_the_first_and_ties_go_to_the_lowest() -> None:
    X = np.array([[0.0], [1.0], [2.0], [5.0]])

    labels, found = assign(ArrayRows(X), [np.array([[2.0], [0.0], [2.0], [0.0]])])[0]

    assert labels.tolist() == [1, 0, 0, 0]
    assert found.counts.tolist() == [3, 1, 0, 0]


def test_several_sets_of_centroids_share_a_pass_and_each_gets_what_it_would_alone() -> None:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(ROWS, 3))
    sets = [rng.normal(size=(k, 3)) for k in (2, 7, 4)]

    for (labels, found), centroids in zip(assign(ArrayRows(X), sets), sets, strict=True):
        alone, sums = assign(ArrayRows(X), [centroids])[0]
        assert labels.tobytes() == alone.tobytes()
        assert found.squares.tobytes() == sums.squares.tobytes()


def test_rows_that_are_left_out_are_in_no_sum() -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(ROWS, 3))
    centroids = rng.normal(size=(4, 3))
    labels = rng.integers(-1, 4, ROWS)
    X[labels < 0] = 1e100

    _equals(tally(ArrayRows(X), labels, centroids, by_column=True), _by_hand(X, centroids, labels))


@pytest.mark.parametrize("spreads", [(1, 1, 1, 1), (1, 1, 1, 1e-4), (1e-6, 1e-6, 1, 1e-6)])
@pytest.mark.parametrize("far_first", [False, True])
def test_cells_near_the_centre_and_far_from_it_keep_their_digits(
    far_first: bool, spreads: tuple[float, ...]
) -> None:
    """For its spread a cell may be far: those of most rows, of few, or of all but the first."""
    rng = np.random.default_rng(8)
    centroids = np.array([[0.0, 0], [5, 0], [0, 5], [-5, -5]])
    near, far = (np.flatnonzero(np.array(spreads) == kind) for kind in (1, min(spreads)))
    labels = rng.choice(near, 2 * ROWS)
    labels[:ROWS] = rng.choice(far, ROWS)
    labels = labels[:: 1 if far_first else -1]
    X = centroids[labels] + rng.normal(size=(2 * ROWS, 2)) * np.array(spreads)[labels, None]
    centroids += rng.normal(size=(4, 2)) * np.array(spreads)[:, None]

    found = tally(ArrayRows(X), labels, centroids)

    counts, offsets, squares = _by_hand(X, centroids, labels)
    _equals(found, (counts, offsets, squares.sum(axis=1, keepdims=True)))


def test_squares_that_overflow_about_the_centre_need_not_about_the_centroids() -> None:
    labels = np.repeat([0, 1], 50)
    centroids = np.array([[-1e160], [1e160]])
    X = centroids[labels] + 1e150

    with np.errstate(over="ignore", invalid="ignore"):
        found = tally(ArrayRows(X), labels, centroids)

    _equals(found, _by_hand(X, centroids, labels))


def test_a_row_that_is_its_centroid_costs_nothing() -> None:
    X = np.array([[0.1, 3.0], [7.3, -2.0], [7.3, -2.0]])

    found = tally(ArrayRows(X), np.array([0, 1, 1]), X[:2])

    assert found.offsets.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert found.squares.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("apart", [1.0, 100.0])
@pytest.mark.parametrize("value", [0.0, 1e100, np.nan])
def test_what_rows_that_are_left_out_hold_changes_no_bit(value: float, apart: float) -> None:
    """What the guard takes away leaves no trace in the last digits."""
    rng = np.random.default_rng(9)
    centroids = apart * rng.normal(size=(4, 3))
    labels = rng.integers(-1, 4, ROWS)
    X = centroids[labels] + rng.normal(size=(ROWS, 3))
    first = tally(ArrayRows(X.copy()), labels, centroids)

    X[labels < 0] = value
    other = tally(ArrayRows(X), labels, centroids)

    assert first.offsets.tobytes() == other.offsets.tobytes()
    assert first.squares.tobytes() == other.squares.tobytes()


@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_the_pass_and_the_sums_of_its_labels_are_the_same_bytes(spread: float) -> None:
    """What the guard leaves as it was goes out as it would have if it had looked again."""
    rng = np.random.default_rng(4)
    centroids = rng.normal(size=(6, 5))
    X = centroids[rng.integers(0, 6, ROWS)] + rng.normal(size=(ROWS, 5)) * spread
    centroids = np.concatenate([centroids, centroids[:2]])
    for by_column in (True, False):
        labels, first = assign(ArrayRows(X), [centroids], by_column=by_column)[0]
        again = tally(ArrayRows(X), labels, centroids, by_column=by_column)
        assert first.offsets.tobytes() == again.offsets.tobytes()
        assert first.squares.tobytes() == again.squares.tobytes()
        in_all = _by_hand(X, centroids, labels)[2].sum(axis=1)
        np.testing.assert_allclose(first.squares.sum(axis=1), in_all)


# --- what becomes of it ---------------------------------------------------------------------------


def _plan(*features: Feature, centroids: NDArray[Any], p: int = 5) -> Plan:
    return Plan(
        method=lloyd.METHOD,
        options=lloyd.Config(n_clusters=len(centroids), start="given", centroids=centroids),
        features=features,
        policy=Policy(scaling="none", min_group_size=p, min_sites=1),
        seed=0,
    )


def _step(plan: Plan, data: SiteData, centroids: NDArray[Any], memory: Memory) -> Any:
    space = Space.identity(data.X.shape[1])
    return engine.local_step(
        plan,
        SiteTask("lloyd", lloyd.StepTask(centroids=centroids), SitePart(), space),
        data,
        site="a",
        round_number=1,
        p=plan.policy.min_group_size,
        size_band=None,
        memory=memory,
    )


def test_a_cost_says_nothing_of_a_share_but_what_was_rounded() -> None:
    """One person with the property or two: the same share is sent, and the same cost to a bit."""
    rng = np.random.default_rng(5)
    features = (Feature(name="x"), Feature(name="rare", kind="binary"))
    centroids = np.array([[0.0, 0.5], [100.0, 0.5]])
    X = np.column_stack([rng.normal(size=400), np.zeros(400)])
    X[200:, 0] += 100
    X[200:300, 1] = 1.0
    sent = []
    for with_it in (1, 2):
        X[:2, 1] = 0.0
        X[:with_it, 1] = 1.0
        payload, _ = _step(_plan(*features, centroids=centroids), SiteData(X.copy()), centroids, {})
        sent.append(payload)
        assert payload.sums[0, 1] == 0.0
        assert payload.sums[1, 1] == pytest.approx(100.0)
    assert sent[0].costs.tobytes() == sent[1].costs.tobytes()
    in_second = X[200:] - centroids[1]
    assert sent[0].costs[1] == pytest.approx((in_second**2).sum(), rel=1e-12)


def test_a_site_that_starts_anew_sends_the_same_bytes() -> None:
    """What is kept of the rows from round to round decides nothing."""
    rng = np.random.default_rng(6)
    centroids = rng.normal(size=(3, 2))
    plan = _plan(Feature(name="x"), Feature(name="y"), centroids=centroids)
    X = rng.normal(size=(500, 2))
    running, kept, anew = SiteData(X), {}, {}
    for _ in range(4):
        payload, kept = _step(plan, running, centroids, kept)
        again, anew = _step(plan, SiteData(X.copy()), centroids, anew)
        assert payload.sums.tobytes() == again.sums.tobytes()
        assert payload.costs.tobytes() == again.costs.tobytes()
        centroids = payload.sums / payload.counts[:, None]


def test_rows_under_another_mask_or_scale_are_prepared_again() -> None:
    """What is kept of the rows answers only the question that it was made for."""
    X = np.random.default_rng(7).normal(size=(50, 2))
    data, centroids = SiteData(X), np.zeros((1, 2))
    plan = _plan(Feature(name="x"), Feature(name="y"), centroids=centroids)
    for scale in (1.0, 2.0, 1.0):
        space = Space(np.zeros(2), np.full(2, scale))
        task = SiteTask("lloyd", lloyd.StepTask(centroids=centroids), SitePart(), space)
        payload, _ = engine.local_step(
            plan, task, data, site="a", round_number=1, p=5, size_band=None, memory={}
        )
        np.testing.assert_allclose(payload.sums[0], X.sum(axis=0) / scale)
