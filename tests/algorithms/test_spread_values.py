"""How often values occur in sets, counted for all columns at once, against one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust.algorithms import spreads
from fedclust.algorithms.base import Feature, Policy, RunConfig, SiteData
from fedclust.algorithms.lloyd import Config
from fedclust.algorithms.spreads import few_differ
from fedclust.privacy.counting import PersonIndex


def _config(d: int, p: int) -> RunConfig:
    features = tuple(Feature(name=f"x{j}") for j in range(d))
    policy = Policy(min_group_size=p)
    return RunConfig(Config(n_clusters=2), features, policy, ("a", "b", "c"), p)


def _rows(seed: int) -> tuple[SiteData, int, list[NDArray[np.int64]]]:
    """Return rows of columns of all kinds, p, and partitions of them."""
    rng = np.random.default_rng(seed)
    n, p = int(rng.integers(20, 150)), int(rng.integers(2, 6))
    X = np.column_stack(
        [
            np.where(rng.random(n) < 0.08, rng.normal(size=n), 0.0),
            rng.integers(0, 4, n) * (rng.random(n) < 0.2),
            rng.normal(size=n),
            np.round(rng.normal(size=n), 1),
            np.where(rng.random(n) < 0.5, -0.0, 0.0) + (rng.random(n) < 0.03),
            np.zeros(n),
        ]
    )
    persons = rng.integers(0, max(n // 2, 2), n) if seed % 3 == 0 else None
    observed = rng.random(X.shape) < 0.8 if seed % 4 == 0 else None
    data = SiteData(X, persons, observed=observed, index=PersonIndex(X, persons))
    fine = rng.integers(0, int(rng.integers(2, 9)), n)
    return data, p, [fine // 2, np.where(fine == 1, -1, fine), rng.integers(-1, 3, n), fine]


def _usual_of(
    data: SiteData, p: int, told: list[NDArray[np.int64]], now: NDArray[np.int64], fewer: float
) -> set[tuple[int, float]]:
    """Return columns and values that all but ``fewer`` have in sets with p such rows together."""
    assert data.index is not None
    weights = data.index.weights()
    weights = np.ones(len(now)) if weights is None else weights
    observed = np.ones(data.X.shape, dtype=np.bool_) if data.observed is None else data.observed
    found = set()
    for j, seen in enumerate(observed.T):
        values, counts = np.unique(data.X[seen, j], return_counts=True)
        for value in values[counts >= p]:
            having = seen & (data.X[:, j] == value)
            for then in [np.zeros_like(now), *told]:
                together = 0
                for pair in set(zip(now.tolist(), then.tolist(), strict=True)):
                    inside = (now == pair[0]) & (then == pair[1])
                    others = weights[inside & seen].sum() - weights[inside & having].sum()
                    together += int((inside & having).sum()) if others < fewer else 0
                if together >= p:
                    found.add((j, float(value)))
    return found


WAYS: dict[str, dict[str, Any]] = {
    "all columns at once": {},
    "those that may have such values": {"_FEW_VALUES": 0},
    "one column at a time, sorted": {"_PART": 1, "_FEW_VALUES": 0},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(12))
def test_counts_of_all_columns_are_those_of_each(
    way: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in WAYS[way].items():
        monkeypatch.setattr(spreads, name, limit)
    data, p, partitions = _rows(seed)
    told: list[NDArray[np.int64]] = []
    for labels in partitions:
        judged = spreads._Spreads(
            data, _config(6, p), [(then.astype(np.int16), np.empty(0)) for then in told]
        )
        n_cells = int(labels.max()) + 1
        few = judged._few(labels, n_cells)
        for cell, j in np.ndindex(n_cells, 6):
            rows = np.flatnonzero((labels == cell) & judged._seen(j))
            assert data.index is not None
            expected = len(rows) > 0 and few_differ(data.X[rows, j], rows, data.index, p)
            assert few[cell, j] == expected, (cell, j)
        columns, numbers = judged._usual(labels)
        values = set()
        for j, number in zip(columns.tolist(), numbers.tolist(), strict=True):
            (value,) = set(data.X[judged._numbered[j].of == number, j].tolist())
            values.add((j, value))
        # Weights of persons are fractions.
        assert _usual_of(data, p, told, labels, p - 1e-9) <= values
        assert values <= _usual_of(data, p, told, labels, p + 1e-9)
        told.append(labels)
