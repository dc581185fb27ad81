"""What points let anybody learn: against the definition of the trade-off, and a simulated guess."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from fedclust.result.privacy_loss import DELTA, epsilon, noise_sd, right_guesses


@pytest.mark.parametrize("points", [1, 10, 25, 100, 400, 10_000, 1_000_000])
def test_delta_at_epsilon_is_the_overlap_of_two_normal_densities(points: int) -> None:
    """delta = integral of max(0, p - exp(epsilon) q), p and q normal with means mu apart."""
    mu, found = np.sqrt(2 * points / 250), epsilon(points)
    start = found / mu + mu / 2  # where p = exp(epsilon) q, with p around mu

    def exceeds(x: float) -> float:
        return norm.pdf(x, mu) * -np.expm1(found + norm.logpdf(x) - norm.logpdf(x, mu))

    delta, _ = quad(exceeds, start, start + 40)
    assert delta == pytest.approx(DELTA, rel=1e-4)


def test_the_figures_of_the_design() -> None:
    assert [round(epsilon(n), 1) for n in (25, 50, 200, 400)] == [1.8, 2.6, 5.8, 8.7]
    assert round(epsilon(100), 2) == 3.85
    right = [round(right_guesses(n), 3) for n in (100, 200, 400, 800)]
    assert right == [0.673, 0.736, 0.814, 0.897]
    assert (right_guesses(0), epsilon(0)) == (0.5, 0.0)
    assert [round(noise_sd(n), 1) for n in (10, 50, 100)] == [5.0, 2.2, 1.6]


@pytest.mark.parametrize("points", [10, 100])
def test_the_best_guess_from_two_noisy_cells(points: int) -> None:
    """Whoever knows all others subtracts them: one of two cells holds the one person."""
    rng, n = np.random.default_rng(points), 200_000
    yes = rng.random(n) < 0.5
    cells = np.column_stack([~yes, yes]) + rng.normal(0, noise_sd(points), (n, 2))
    guessed = cells[:, 1] > cells[:, 0]
    assert np.mean(guessed == yes) == pytest.approx(right_guesses(points), abs=0.004)
