"""What eigenvectors, anchors and radii tell of rows: attackers who know the method and the task.

The shared attacker (`tests/support/attacker.py`) subtracts sums of rows. Eigenvectors are no sums:
these attackers compute the graphs of rows that could have been, and compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedclust.algorithms import spectral, spectral_answers, spectral_site
from fedclust.algorithms.base import (
    Feature,
    Policy,
    RuleViolation,
    RunConfig,
    SiteData,
    SiteTask,
    Space,
)
from fedclust.algorithms.spectral_cells import common_rows, resting_on_few
from fedclust.algorithms.spectral_graph import embed
from fedclust.privacy.counting import PersonIndex

FloatArray = NDArray[np.float64]
P = 5


@contextmanager
def unprotected() -> Iterator[None]:
    """Let every row count as itself, and every eigenvector be told to the last digit."""
    with (
        mock.patch.object(spectral_site, "common_rows", lambda X, *_: X),
        mock.patch.object(
            spectral_site, "resting_on_few", lambda v, *_: np.zeros(v.shape[1], bool)
        ),
        mock.patch.object(spectral_site, "_stepped", lambda vectors: vectors),
    ):
        yield


def answer(
    X: FloatArray, phase: str, kind: str = "numeric", memory: Any = None, **options: Any
) -> tuple[Any, Any]:
    """Return what a site with these rows, a person each, sends and remembers."""
    anchors = {name: options.pop(name) for name in ("anchors_given", "vectors") if name in options}
    config = RunConfig(
        options=spectral.Config(**options),
        features=tuple(Feature(name=f"x{j}", kind=kind) for j in range(X.shape[1])),
        policy=Policy(min_group_size=P, scaling="none"),
        roster=("a", "b", "c"),
        p=P,
        space=Space.identity(X.shape[1]),
    )
    tasks: dict[str, Any] = {
        "landmarks": spectral_answers.LandmarksTask(n_cells=60),
        "anchors": spectral_answers.AnchorsTask(n_anchors=max(config.options.n_anchors, 1)),
        "eigen": spectral_answers.EigenTask(
            anchors=anchors.get("anchors_given"), vectors=anchors.get("vectors")
        ),
    }
    part = spectral_answers.AnchorPart(totals=False, rows=len(X), anchors=True)
    task = SiteTask(phase, tasks[phase], part, config.space)
    persons = np.arange(len(X))
    data = SiteData(X, persons, index=PersonIndex(X, persons))
    rng = np.random.default_rng(0)
    return spectral_site.local_step(task, data, config, rng, {} if memory is None else memory)


# --- records among few different rows -------------------------------------------------------------

PATTERNS = np.array(list(product((0.0, 1.0), repeat=4)))
#: Answers that many persons give, and one that a single person gives.
COMMON, ALONE = (0, 1, 3, 8, 12, 15), 6


def records(*alone: int) -> FloatArray:
    return PATTERNS[[*np.repeat(COMMON, 20), *alone]]


def who_is_there(sent: spectral_answers.Anchors, gamma: float | None) -> list[int | None]:
    """Return the records that one person more may have, by where the anchors are said to lie.

    The attacker knows what cells of p persons have told. He computes the graph with each other
    record, and with none, and looks whether the anchors lie as they were said to.
    """
    filled = sent.counts > 0
    means, vectors = sent.means[filled], sent.vectors[filled]
    found = []
    for extra in [None, *range(len(PATTERNS))]:
        rows = records() if extra is None else records(extra)
        if gamma is None:
            rows = np.unique(rows, axis=0)
        _, placed = embed(
            np.concatenate([rows, means]),
            vectors.shape[1],
            np.random.default_rng(0),
            gamma=gamma,
            neighbours=10,
        )
        placed = placed[len(rows) :]
        # Products stay when eigenvectors change sign, or turn where eigenvalues are equal.
        if np.abs(placed @ placed.T - vectors @ vectors.T).max() < 1e-9:
            found.append(extra)
    return found


@pytest.mark.parametrize("gamma", [None, 1.0])
def test_no_real_record_that_one_person_has_is_told_by_anchors(gamma: float | None) -> None:
    options = {"n_clusters": 3, "alignment": "procrustes", "gamma": gamma}
    with unprotected():
        told, _ = answer(records(ALONE), "anchors", "binary", **options)
    protected, _ = answer(records(ALONE), "anchors", "binary", **options)

    assert who_is_there(told, gamma) == [ALONE]
    assert ALONE not in who_is_there(protected, gamma)
    assert protected.counts.any()


def test_rows_that_few_share_count_as_the_nearest_that_many_share() -> None:
    X = records(ALONE, 7)
    common = common_rows(X, None, P)
    np.testing.assert_array_equal(np.unique(common, axis=0), PATTERNS[list(COMMON)])
    np.testing.assert_array_equal(common[:120], X[:120])
    least = np.abs(X[120:, None] - PATTERNS[None, list(COMMON)]).sum(axis=2).min(axis=1)
    np.testing.assert_array_equal(np.abs(common[120:] - X[120:]).sum(axis=1), least)
    # Of persons: twenty rows of one are a record that one person has.
    persons = np.arange(len(X))
    persons[:20] = 0
    assert not (common_rows(X, persons, P) == PATTERNS[COMMON[0]]).all(axis=1).any()
    scattered = np.random.default_rng(0).normal(size=(50, 2))
    assert common_rows(scattered, None, P) is scattered


# --- counts below p -------------------------------------------------------------------------------


def blobs(n_apart: int) -> FloatArray:
    """Return two clusters and a few rows apart from both."""
    rng = np.random.default_rng(1)
    centres = np.repeat([[0.0, 0.0], [4.0, 0.0], [0.0, 3.2]], [40, 20, n_apart], axis=0)
    return centres + rng.normal(0.0, 0.2, (len(centres), 2))


def test_no_count_below_p_follows_from_how_far_the_others_are_moved() -> None:
    """An eigenvector that points to few rows is at the others the larger, the more they are."""
    options = {"n_clusters": 3, "alignment": "none", "gamma": 1.0}
    with unprotected():
        told = [answer(blobs(s), "eigen", **options)[0] for s in (2, 3, 4)]
    for sent in told:
        assert sorted(sent.counts.tolist()) == [0, 0, 40]  # The smaller two have gone to the rest.
    moved = [np.abs(sent.vectors[sent.counts > 0][0, 2]) for sent in told]
    assert 0 < 2 * moved[0] < 1.5 * moved[1] < moved[2]

    for s in (2, 3, 4):
        sent, memory = answer(blobs(s), "eigen", **options)
        assert sent.counts.any()
        assert not sent.vectors[:, 2].any()
        assert sent.vectors[:, 1].any()
        # Nor do labels of later rows rest on it.
        assert not memory["spectral"]["vectors"][:, 2].any()


@given(st.integers(0, 10_000), st.integers(1, 30), st.booleans())
@settings(max_examples=60, deadline=None)
def test_half_of_an_eigenvector_lies_in_p_persons(seed: int, s: int, in_pairs: bool) -> None:
    rng = np.random.default_rng(seed)
    n = 40
    persons = np.arange(n) // 2 if in_pairs else np.arange(n)
    vector = np.where(np.arange(n) < s, 1.0, 0.0)[:, None]
    index = PersonIndex(rng.normal(size=(n, 1)), persons)
    half = s // 2 + 1
    assert resting_on_few(vector, index, P).tolist() == [len(set(persons[:half])) < P]
    order = rng.permutation(n)
    shuffled = PersonIndex(rng.normal(size=(n, 1)), persons[order])
    assert resting_on_few(-3.0 * vector[order], shuffled, P).tolist() in ([True], [False])


def test_a_vector_that_is_nowhere_tells_nothing() -> None:
    index = PersonIndex(np.zeros((9, 1)), np.arange(9))
    assert not resting_on_few(np.zeros((9, 1)), index, P).any()


# --- questions that no honest coordinator asks ----------------------------------------------------


def test_a_site_does_not_tell_whether_it_has_a_real_record_that_is_put_to_it() -> None:
    """An anchor at somebody's record, and a graph that joins what is very near: is he there?"""
    X = np.random.default_rng(2).normal(size=(80, 2))
    someone = X[11:12]
    away = np.delete(X, 11, axis=0)
    options = {"n_clusters": 8, "alignment": "sign", "gamma": 1e4}
    vectors = np.ones((1, 8))

    def told() -> list[Any]:
        return [
            answer(rows, "eigen", anchors_given=someone, vectors=vectors, **options)[0]
            for rows in (X, np.vstack([away, [[50.0, 50.0]]]))
        ]

    with unprotected():
        there, not_there = told()
        assert not np.array_equal(np.abs(there.vectors), np.abs(not_there.vectors))
    for sent in told():
        assert not sent.vectors.any()


def test_eigenvectors_are_asked_for_once_and_about_no_more_anchors_than_agreed() -> None:
    X = blobs(6)
    options = {"n_clusters": 2, "alignment": "sign", "gamma": 1.0}
    asked = {"anchors_given": X[:1], "vectors": np.ones((1, 2))}
    _, memory = answer(X, "eigen", **options, **asked)
    with pytest.raises(RuleViolation, match="asked for once"):
        answer(X, "eigen", memory=memory, **options, **asked)
    with pytest.raises(RuleViolation) as refused:
        answer(X, "eigen", **options, anchors_given=X[:2], vectors=np.ones((2, 2)))
    assert refused.value.pointer == "/parameters/anchors"


# --- radii ----------------------------------------------------------------------------------------


def test_a_radius_of_yes_no_rows_tells_nothing_that_the_shares_do_not() -> None:
    rng = np.random.default_rng(3)
    X = (rng.random((90, 4)) < [0.5, 0.1, 0.03, 0.5]).astype(float)
    sent, _ = answer(X, "landmarks", "binary", n_clusters=2)
    filled = sent.counts > 0
    assert filled.any()
    shares = sent.means[filled]
    np.testing.assert_allclose(
        sent.radii[filled] ** 2, (shares * (1 - shares)).sum(axis=1), atol=1e-12
    )
    exact = X.mean(axis=0)
    assert (exact > 0).all()
