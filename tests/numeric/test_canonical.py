"""Choices among equals do not depend on the last digits, nor on the basis a library returned."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedclust.methods.overlap_oneshot import draw_proxies
from fedclust.methods.spectral.graph import align_by_rotation, spectrum
from fedclust.numeric.canonical import (
    break_distance_ties,
    canonical_eigenbasis,
    eigenspace_is_complete,
    round_to_tolerance,
    tolerant_argmax,
    tolerant_argmin,
    tolerant_argsort,
    tolerant_lexsort,
)
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.weighted_kmeans import weighted_kmeans

#: What another processor's kernels would make of the same numbers.
ROUNDING = 1e-15


def elsewhere(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return values with other last digits."""
    noise = np.random.default_rng(seed).choice([-ROUNDING, ROUNDING], values.shape)
    return np.asarray(values * (1.0 + 4.0 * noise))


@pytest.mark.parametrize(
    ("choose", "values", "expected"),
    [
        (tolerant_argmin, [3.0, 1.0, 1.0 - ROUNDING, 2.0], 1),
        (tolerant_argmax, [3.0, 1.0, 3.0 + 4 * ROUNDING], 0),
        (tolerant_argmin, [np.inf, 2.0, 2.0], 1),
        (tolerant_argmin, [np.inf, np.inf], 0),
        (tolerant_argmin, [[1.0, 1.0 - ROUNDING], [1.0, 0.5]], [0, 1]),
        (tolerant_argsort, [2.0, 1.0, 1.0 - ROUNDING, 0.0], [3, 1, 2, 0]),
        (tolerant_lexsort, [[1.0, 2.0], [1.0 - ROUNDING, 3.0], [1.0 + ROUNDING, 1.0]], [2, 0, 1]),
        (tolerant_lexsort, np.empty((0, 2)), []),
    ],
)
def test_the_first_of_equal_values_is_taken(
    choose: Callable[[Any], Any], values: Any, expected: Any
) -> None:
    assert np.array_equal(choose(np.array(values)), expected)


def test_values_that_differ_by_more_than_rounding_are_distinct() -> None:
    assert tolerant_argmin(np.array([1.0, 1.0 - 1e-9])) == 1
    assert tolerant_argsort(np.array([1.0, 1.0 - 1e-9])).tolist() == [1, 0]
    assert len(np.unique(round_to_tolerance(np.array([1.0, 1.0 + ROUNDING, 1.0 + 1e-9])))) == 2
    assert round_to_tolerance(np.zeros(2)).tolist() == [0.0, 0.0]


def test_a_row_between_two_centroids_goes_to_the_first() -> None:
    """Also where rounding put it a little nearer to the other."""
    centroids = np.array([[2.0, 0.1], [0.0, 0.1], [1.0, 9.0]])
    rows = np.column_stack([np.full(50, 1.0), np.linspace(-1.0, 1.0, 50)])
    for seed in range(5):
        assert not nearest_centroid(elsewhere(rows, seed), centroids).any()


def test_ties_between_points_are_broken_by_their_coordinates() -> None:
    grid = np.stack(np.meshgrid(np.arange(4.0), np.arange(4.0)), axis=-1).reshape(-1, 2)
    moved = break_distance_ties(grid)
    gaps = ((moved[:, None] - moved) ** 2).sum(axis=2)[np.triu_indices(16, 1)]
    # By far more than rounding, and by far less than what tells points apart.
    assert np.diff(np.sort(gaps)).min() > 10 * ROUNDING
    assert np.abs(moved - grid).max() < 1e-6
    again = break_distance_ties(elsewhere(np.vstack([grid, grid])))
    assert np.array_equal(again[:16], again[16:])
    np.testing.assert_allclose(again[:16], moved, atol=1e-12)
    assert np.array_equal(break_distance_ties(np.zeros((3, 2))), np.zeros((3, 2)))


def test_points_that_differ_by_rounding_draw_the_same_seeds() -> None:
    rng = np.random.default_rng(1)
    points = np.repeat(rng.integers(0, 5, (60, 4)).astype(float), 2, axis=0) + 0.1
    weights = np.ones(len(points))
    found = [
        weighted_kmeans(elsewhere(points, seed), weights, 7, np.random.default_rng(2), 3)
        for seed in range(4)
    ]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-9)


def test_eigenvectors_do_not_depend_on_the_basis_the_library_returned() -> None:
    rng = np.random.default_rng(3)
    vectors = np.linalg.qr(rng.normal(size=(30, 5)))[0]
    values = np.array([0.0, 0.3, 0.3, 0.3 + ROUNDING, 0.9])
    found = canonical_eigenbasis(values, vectors)
    np.testing.assert_allclose(found.T @ found, np.eye(5), atol=1e-12)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    other = np.column_stack([-vectors[:, 0], vectors[:, 1:4] @ turn, -vectors[:, 4]])
    np.testing.assert_allclose(canonical_eigenbasis(values, other), found, atol=1e-12)
    # Each stays in its own space.
    np.testing.assert_allclose(np.abs(found[:, 4]), np.abs(vectors[:, 4]))
    known = vectors[:, 0]
    np.testing.assert_allclose(canonical_eigenbasis(values, other, known)[:, 0], known)


@pytest.mark.parametrize(
    ("values", "k", "complete"),
    [
        ([0.0, 0.1, 0.2], 2, True),
        ([0.0, 0.1, 0.1], 2, False),
        ([0.0, 0.1, 0.1, 0.2], 2, True),
        ([0.0, 0.1], 2, False),
    ],
)
def test_an_incomplete_eigenspace_is_recognised(
    values: list[float], k: int, complete: bool
) -> None:
    assert eigenspace_is_complete(np.array(values), k) is complete


def test_eigenvectors_of_a_cycle_do_not_depend_on_the_kernel() -> None:
    """Its eigenvalues come in pairs, and the second pair is cut in two."""
    from scipy.sparse import csr_array

    ring = np.roll(np.eye(24), 1, axis=0) + np.roll(np.eye(24), -1, axis=0)
    one, two = (
        spectrum(csr_array(graph), 4, np.random.default_rng(0)) for graph in (ring, elsewhere(ring))
    )
    np.testing.assert_allclose(one.values, two.values, atol=1e-12)
    np.testing.assert_allclose(one.vectors, two.vectors, atol=1e-9)


def test_a_rotation_that_anchors_do_not_determine_is_the_identity() -> None:
    """The third direction is unknown at one site: nothing is turned in it."""
    rng = np.random.default_rng(4)
    own = np.column_stack([rng.normal(size=(8, 2)), np.zeros(8)])
    about = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(align_by_rotation(own @ about, own), about, atol=1e-9)
    np.testing.assert_allclose(align_by_rotation(np.zeros((1, 3)), own[:1]), np.eye(3), atol=1e-12)


def test_proxies_do_not_depend_on_the_signs_of_principal_axes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    covariances = np.array([[[2.0, 0.5], [0.5, 1.0]]])

    def drawn() -> np.ndarray:
        return draw_proxies(
            np.zeros((1, 2)),
            np.array([[20.0, 10.0]]),
            np.arange(2),
            6,
            np.random.default_rng(5),
            covariances,
        )

    before, eigh = drawn(), np.linalg.eigh

    def flipped(matrix: np.ndarray) -> Any:
        values, vectors = eigh(matrix)
        return values, -vectors

    monkeypatch.setattr(np.linalg, "eigh", flipped)
    np.testing.assert_allclose(drawn(), before)
