"""Draw the figures of a result: ``python docs/result_figures.py`` writes ``figures/result_*.svg``.

The result is that of a simulated session on made-up patients of four hospitals. A test draws the
figures again and compares positions.
"""

import functools
from collections.abc import Callable

import numpy as np
import pandas as pd

from diagrams import save
from fedclust import SessionResult, simulate
from fedclust.result.drawing import Figure

#: Means of age, systolic blood pressure, lactate and platelets, and share with fever, by phenotype.
PHENOTYPES = np.array(
    [
        [66.0, 118.0, 2.0, 210.0, 0.3],
        [71.0, 96.0, 4.6, 150.0, 0.5],
        [48.0, 121.0, 1.6, 290.0, 0.9],
        [63.0, 152.0, 1.8, 240.0, 0.1],
    ]
)
SPREADS = np.array([9.0, 11.0, 0.8, 42.0])
SHARES = {
    "bergen": [0.4, 0.3, 0.2, 0.1],
    "ghent": [0.3, 0.1, 0.4, 0.2],
    "lisbon": [0.2, 0.2, 0.2, 0.4],
    "turin": [0.3, 0.4, 0.1, 0.2],
}
FEATURES = [
    {"name": "age", "unit": "years"},
    {"name": "systolic", "unit": "mmHg"},
    {"name": "lactate", "unit": "mmol/l"},
    {"name": "platelets", "unit": "10⁹/l"},
    {"name": "fever", "kind": "binary"},
]
OUTCOMES = [
    {"name": "died", "role": "outcome", "kind": "binary", "points": 50},
    {
        "name": "months",
        "role": "outcome",
        "kind": "time",
        "unit": "months",
        "edges": [3, 6, 12, 24],
        "event": "readmitted",
        "points": 50,
    },
]
#: The share who die, and the mean months until a patient comes back, by phenotype.
DIED = np.array([0.12, 0.42, 0.08, 0.2])
MONTHS = np.array([30.0, 9.0, 40.0, 16.0])


def patients(site: str, count: int = 150) -> pd.DataFrame:
    """Return made-up patients of a hospital."""
    rng = np.random.default_rng(list(SHARES).index(site))
    of = rng.choice(len(PHENOTYPES), count, p=SHARES[site])
    means = PHENOTYPES[of]
    numbers = rng.normal(means[:, :4], SPREADS)
    fever = (rng.random(count) < means[:, 4]).astype(float)
    names = [feature["name"] for feature in FEATURES]
    rows = pd.DataFrame(np.column_stack([numbers, fever]), columns=names)
    back, followed = rng.exponential(MONTHS[of]), rng.uniform(6.0, 36.0, count)
    return rows.assign(
        died=(rng.random(count) < DIED[of]).astype(float),
        months=np.minimum(back, followed),
        readmitted=(back <= followed).astype(float),
    )


@functools.cache
def session() -> SessionResult:
    """Return the result of a session with two to five clusters, evidence and two outcomes."""
    return simulate(
        "fkm",
        {site: patients(site) for site in SHARES},
        config={"n_clusters": [2, 3, 4, 5], "stability": 20},
        features=[*FEATURES, *OUTCOMES],
        outcomes_k=4,
        seed=2,
        progress=False,
    )


def _drawer(name: str) -> Callable[[], Figure]:
    def draw() -> Figure:
        figure: Figure = getattr(session().at(4).plot, name)()
        return figure

    return draw


FIGURES: dict[str, Callable[[], Figure]] = {
    f"result_{name}": _drawer(name)
    for name in (
        "profile",
        "forest",
        "survival",
    )
}


if __name__ == "__main__":
    save(FIGURES)
