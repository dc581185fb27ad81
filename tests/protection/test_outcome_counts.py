"""Counts of outcomes: exact inside, discrete Gaussian noise outside, and nothing that seeds it."""

import ast
import inspect
import math
import os
import secrets
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import fedclust
from fedclust.protection import outcome_counts
from fedclust.protection.outcome_counts import count_outcomes

N = 10_000


def noise(variance: Fraction, n: int = N, **how: object) -> np.ndarray:
    """Return the noise of ``n`` counts of nobody."""
    nobody = np.zeros(0, dtype=np.int64)
    return count_outcomes(nobody, nobody, 0, n, variance, **how).ravel()


def probabilities(variance: Fraction, most: int) -> np.ndarray:
    """Return those of -most, ..., most."""
    weights = [math.exp(-(x**2) / (2 * float(variance))) for x in range(-400, 401)]
    return np.array(weights[400 - most : 401 + most]) / sum(weights)


@pytest.mark.parametrize("points", [1, 10, 50, 100, 250, 997, 2_000])
def test_noise_has_the_probabilities_of_the_discrete_gaussian(points: int) -> None:
    variance = Fraction(250, points)
    drawn = noise(variance)
    most = max(1, round(2.2 * math.sqrt(variance)))
    expected = probabilities(variance, most)
    counted = Counter(drawn.tolist())
    inside = [counted[x] for x in range(-most, most + 1)]
    tails = (int((drawn < -most).sum()), int((drawn > most).sum()))
    tail = (1.0 - expected.sum()) / 2
    observed, wanted = np.array([*inside, *tails]), np.array([*expected, tail, tail]) * N
    kept = wanted > 5
    wanted[kept] *= observed[kept].sum() / wanted[kept].sum()
    # Fails once in a million runs for each variance.
    assert stats.chisquare(observed[kept], wanted[kept]).pvalue > 1e-6


@pytest.mark.parametrize("points", [1, 10, 100])
def test_noise_has_mean_0_and_the_declared_variance(points: int) -> None:
    variance = Fraction(250, points)
    drawn = noise(variance)
    places = np.arange(-400, 401)
    exact = float((probabilities(variance, 400) * places**2).sum())
    assert abs(drawn.mean()) < 5 * math.sqrt(exact / N)
    assert drawn.var() == pytest.approx(exact, rel=5 * math.sqrt(2 / N))
    assert exact == pytest.approx(float(variance), rel=1e-3)


def test_persons_are_counted_by_cluster_and_cell() -> None:
    rng = np.random.default_rng(0)
    clusters, cells = rng.integers(-1, 3, 500).astype(np.int16), rng.integers(0, 4, 500)
    found = count_outcomes(clusters, cells.astype(np.int8), 3, 4, Fraction(0))
    expected = [[((clusters == k) & (cells == j)).sum() for j in range(4)] for k in (0, 1, 2, -1)]
    assert (found.dtype, found.tolist()) == (np.int64, expected)
    assert count_outcomes(clusters[:0], cells[:0], 3, 4, Fraction(0)).tolist() == [[0] * 4] * 4
    noisy = count_outcomes(clusters, cells, 3, 4, Fraction(25))
    assert (noisy != found).any()
    assert np.abs(noisy - found).max() < 40 * 5


def test_every_count_has_noise_of_its_own() -> None:
    """Also those of the row for no cluster, and of cells that nobody is in."""
    nobody = np.zeros(0, dtype=np.int64)
    drawn = np.stack([count_outcomes(nobody, nobody, 2, 3, Fraction(25)) for _ in range(300)])
    assert (drawn.std(axis=0) > 3).all()
    correlations = np.corrcoef(drawn.reshape(300, -1).T) - np.eye(9)
    assert np.abs(correlations).max() < 0.35


def test_only_whole_numbers_are_computed_with() -> None:
    tree = ast.parse(inspect.getsource(outcome_counts))
    for node in ast.walk(tree):
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float | complex))
        assert not isinstance(node, ast.Div)
        names = [getattr(node, "id", ""), getattr(node, "attr", "")]
        assert not {"float", "float64", "random", "sqrt", "exp", "log"}.intersection(names)

    class Whole(int):
        """Fails where it becomes a float."""

        def __float__(self) -> float:
            raise AssertionError

        __truediv__ = __rtruediv__ = __float__

    bounds = []

    def below(n: int) -> int:
        assert type(n) is int
        bounds.append(n)
        return Whole(secrets.randbelow(n))

    noise(Fraction(250, 7), 200, randbelow=below)
    assert min(bounds) >= 1


def test_nothing_of_a_site_seeds_noise() -> None:
    """By default it is drawn by the system: seeds of Python, NumPy and variables do not matter."""
    code = (
        "import random, numpy as np\n"
        "random.seed(1); np.random.seed(1)\n"
        "from fractions import Fraction\n"
        "from fedclust.protection.outcome_counts import count_outcomes\n"
        "nobody = np.zeros(0, dtype=int)\n"
        "print(count_outcomes(nobody, nobody, 8, 12, Fraction(25)).tolist())"
    )
    names = ("PYTHONHASHSEED", "FEDCLUST_SEED", "FEDCLUST_RANDOM", "SEED")
    there = {**os.environ, **dict.fromkeys(names, "1")}
    command = [sys.executable, "-c", code]
    drawn = {subprocess.check_output(command, env=there, text=True) for _ in range(2)}
    assert len(drawn) == 2
    source = inspect.getsource(outcome_counts)
    assert "environ" not in source
    # Nothing of the product hands over another sampler but a simulation: no setting of a site can.
    product = Path(fedclust.__file__).parent
    given = [each for each in product.rglob("*.py") if "randbelow=" in each.read_text("utf-8")]
    assert given == [product / "local/simulate.py"]
    assert inspect.signature(count_outcomes).parameters["randbelow"].default is secrets.randbelow
