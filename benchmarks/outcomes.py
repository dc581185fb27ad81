"""Outcomes by cluster: exact against statsmodels, at p = 5 against exact, and without any effect.

First table: five data sets, two clusters, one outcome each that is not clustered. With
``protection: none`` every estimate and limit is compared with statsmodels on the pooled rows. The
effect is the Mantel-Haenszel odds ratio of a yes/no outcome, and the difference of means, combined
with a fixed effect, of a number; cluster 1 against cluster 0. It is shown exact, at p = 5, and at
p = 5 if all outcomes counted in the distance that forms groups.

Second table: made-up persons whose outcomes have nothing to do with the clusters. The share of
comparisons with p < .05 should be .05.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import statsmodels.stats.api as sms
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine

from _data import SHARED
from _report import write
from fedclust import simulate
from fedclust.protection import table
from fedclust.schema.outcomes import ClusterComparison, Estimate

#: The outcome's column in every data set.
Y = "outcome"
N_SITES = 4
Frames = dict[str, pd.DataFrame]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40, help="drawn data sets of each kind")
    options = parser.parse_args()
    write(
        "outcomes",
        [_compared(name, kind, make()) for name, (kind, make) in DATA.items()],
        note="fkm, K = 2, at p = 5. Odds ratio (yes/no) or difference of means, with 95 % limits.",
    )
    rows = [_null(kind, apart, k, options.runs) for kind, apart, k in NULL]
    write("outcomes_null", rows, note=f"{options.runs} draws, 3 sites of 300 persons, 6 columns.")


# --- five data sets -------------------------------------------------------------------------------


def _split(X: Any, y: Any) -> Frames:
    frame = pd.DataFrame(np.asarray(X), columns=[f"x{j}" for j in range(np.shape(X)[1])])
    frame[Y] = np.asarray(y, dtype=np.float64)
    order = np.random.default_rng(0).permutation(len(frame))
    parts = np.array_split(order, N_SITES)
    return {f"site-{s}": frame.iloc[rows].reset_index(drop=True) for s, rows in enumerate(parts)}


def _cancer() -> Frames:
    data = load_breast_cancer()
    return _split(data.data, data.target == 0)


def _wine() -> Frames:
    data = load_wine()
    return _split(data.data, data.target == 1)


def _digits() -> Frames:
    data = load_digits()
    return _split(data.data[:, data.data.std(axis=0) > 0], data.target % 2)


def _diabetes() -> Frames:
    data = load_diabetes()
    return _split(data.data, data.target)


def _heart() -> Frames:
    found = {}
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        path = SHARED / "heart_disease" / f"processed.{name}.data"
        rows = pd.read_csv(path, header=None, na_values="?")
        names = ["age", "male", "thalach", "exang", "oldpeak"]
        frame = rows[[0, 1, 7, 8, 9]].set_axis(names, axis=1)
        found[name] = frame.assign(**{Y: (rows[13] > 0).astype(float)})
    return found


DATA: dict[str, tuple[str, Callable[[], Frames]]] = {
    "breast cancer: malignant": ("binary", _cancer),
    "wine: second cultivar": ("binary", _wine),
    "digits: odd": ("binary", _digits),
    "diabetes: progression": ("numeric", _diabetes),
    "heart disease: diseased": ("binary", _heart),
}


def _run(sites: Frames, kind: str, k: int = 2, seed: int = 0, **policy: Any) -> Any:
    names = [name for name in next(iter(sites.values())) if name != Y]
    features = [*names, {"name": Y, "kind": kind, "role": "outcome"}]
    config = {"n_clusters": k}
    return simulate(
        "fkm", sites, config=config, features=features, policy=policy, seed=seed, progress=False
    )


def _compared(name: str, kind: str, sites: Frames) -> dict[str, Any]:
    exact = _run(sites, kind, protection="none")
    protected = _run(sites, kind)
    with _whole_distance():
        other = _run(sites, kind)
    (result,) = exact.outcomes_.results
    return {
        "data": name,
        "rows": sum(map(len, sites.values())),
        "largest difference to statsmodels": _difference(sites, exact, kind),
        "exact": _effect(exact, kind),
        "p = 5": _effect(protected, kind),
        "p = 5, in the distance": _effect(other, kind),
        "events, exact": sum(each.events or 0 for each in result.clusters),
        "at p = 5": sum(each.events or 0 for each in protected.outcomes_.results[0].clusters),
        "design effect": protected.outcomes_.results[0].design_effect,
    }


@contextmanager
def _whole_distance() -> Iterator[None]:
    """Let outcomes count where groups are formed, as features do."""
    with mock.patch.object(table, "_shapes_groups", return_value=True):
        yield


def _effect(found: Any, kind: str) -> str:
    """Return the stratified effect of cluster 1 against 0, whichever is the reference."""
    (result,) = found.outcomes_.results
    (one,) = result.comparisons
    estimate = _stratified(one, kind)
    if estimate is None:
        return "–"
    numbers = [estimate.value, estimate.lower, estimate.upper]
    if found.outcomes_.reference == 1:
        other = [1 / each if kind == "binary" else -each for each in numbers]
        numbers = [other[0], other[2], other[1]]
    return "{:.3g} ({:.3g} to {:.3g})".format(*numbers)


def _stratified(one: ClusterComparison, kind: str) -> Estimate | None:
    if kind == "binary":
        return None if one.mantel_haenszel is None else one.mantel_haenszel.odds_ratio
    return None if one.over_sites is None else one.over_sites.fixed


def _difference(sites: Frames, exact: Any, kind: str) -> float:
    """Return the largest relative difference to statsmodels on the rows."""
    (one,) = exact.outcomes_.results[0].comparisons
    reference = exact.outcomes_.reference
    groups = []
    for site, rows in sites.items():
        own = [rows[Y][exact.labels_[site] == k].to_numpy() for k in (one.cluster, reference)]
        groups.append([each[~np.isnan(each)] for each in own])
    whole = [np.concatenate(each) for each in zip(*groups, strict=True)]
    pairs = (_events if kind == "binary" else _means)(one, groups, whole)
    return max(abs(ours - theirs) / max(abs(theirs), 1e-6) for ours, theirs in pairs)


def _numbers(found: Estimate | None) -> list[float]:
    assert found is not None
    return [found.value, found.lower, found.upper]


def _pairs(found: Estimate | None, value: float, limits: Any) -> list[tuple[float, float]]:
    return list(zip(_numbers(found), [value, *limits], strict=True))


def _table(two: list[Any]) -> Any:
    return np.array([[each.sum(), len(each) - each.sum()] for each in two])


def _events(
    one: ClusterComparison, groups: list[list[Any]], whole: list[Any]
) -> list[tuple[float, float]]:
    crude, tables = sms.Table2x2(_table(whole), shift_zeros=False), list(map(_table, groups))
    pairs = []
    if crude.table.min() > 0:
        pairs += _pairs(one.odds_ratio, crude.oddsratio, crude.oddsratio_confint())
        pairs += _pairs(one.risk_ratio, crude.riskratio, crude.riskratio_confint())
    found = sms.StratifiedTable(tables)
    common = one.mantel_haenszel
    assert common is not None
    pairs += _pairs(common.odds_ratio, found.oddsratio_pooled, found.oddsratio_pooled_confint())
    shifted = [each + 0.5 * (each.min() == 0) for each in tables]
    logs = [sms.Table2x2(each, shift_zeros=False) for each in shifted]
    effects = [(each.log_oddsratio, each.log_oddsratio_se**2) for each in logs]
    return pairs + _over_sites(one, effects, math.exp)


def _means(
    one: ClusterComparison, groups: list[list[Any]], whole: list[Any]
) -> list[tuple[float, float]]:
    pairs = []
    described = [sms.DescrStatsW(each) for each in whole]
    limits = sms.CompareMeans(*described).tconfint_diff(usevar="unequal")
    pairs += _pairs(one.mean_difference, described[0].mean - described[1].mean, limits)
    effects = [
        (a.mean() - b.mean(), a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)) for a, b in groups
    ]
    return pairs + _over_sites(one, effects, float)


def _over_sites(
    one: ClusterComparison, effects: list[tuple[float, float]], shown: Callable[[float], float]
) -> list[tuple[float, float]]:
    found = sms.combine_effects(*np.array(effects).T, method_re="chi2")
    own = one.over_sites
    assert own is not None
    fixed, random, *_ = found.conf_int()
    pairs = _pairs(own.fixed, shown(found.mean_effect_fe), map(shown, fixed))
    pairs += [(own.q, found.q), (own.i2.value, max(found.i2, 0.0))]
    if found.tau2 > 0:  # statsmodels' may be below 0
        pairs += _pairs(own.random, shown(found.mean_effect_re), map(shown, random))
    return pairs


# --- no effect at all -----------------------------------------------------------------------------

#: The outcome, how far apart the clusters lie (in standard deviations), and K.
NULL = [
    ("yes/no, 1 in 10", 6.0, 2),
    ("yes/no, 3 in 10", 6.0, 2),
    ("yes/no, 1 in 10", 3.0, 2),
    ("yes/no, 3 in 10", 3.0, 2),
    ("yes/no, 1 in 10", 0.0, 3),
    ("yes/no, 3 in 10", 0.0, 3),
    ("number", 6.0, 2),
    ("number", 0.0, 3),
]


def _null(outcome: str, apart: float, k: int, runs: int) -> dict[str, Any]:
    kind = "numeric" if outcome == "number" else "binary"
    false: dict[str, list[bool]] = {"rows": [], "p = 5": [], "p = 5, in the distance": []}
    for seed in range(runs):
        sites = _unrelated(outcome, apart, seed)
        false["rows"] += _significant(_run(sites, kind, k, seed, protection="none"), kind)
        false["p = 5"] += _significant(_run(sites, kind, k, seed), kind)
        with _whole_distance():
            false["p = 5, in the distance"] += _significant(_run(sites, kind, k, seed), kind)
    shares = {name: float(np.mean(each)) for name, each in false.items()}
    return {"outcome": outcome, "clusters apart": apart, "K": k, **shares}


def _unrelated(outcome: str, apart: float, seed: int) -> Frames:
    rng = np.random.default_rng(seed)
    sites = {}
    for name in "abc":
        X = rng.normal(size=(300, 6))
        X[:, 0] += apart * rng.integers(0, 2, 300)
        share = {"yes/no, 1 in 10": 0.1, "yes/no, 3 in 10": 0.3}.get(outcome)
        y = rng.normal(size=300) if share is None else (rng.random(300) < share).astype(float)
        sites[name] = pd.DataFrame(X, columns=[f"x{j}" for j in range(6)]).assign(**{Y: y})
    return sites


def _significant(found: Any, kind: str) -> list[bool]:
    """Return whether each comparison of clusters has p < .05; none where there are no events."""
    (result,) = found.outcomes_.results
    if kind == "binary":
        common = [each.mantel_haenszel for each in result.comparisons]
        return [each.p_value < 0.05 for each in common if each is not None]
    effects = [each.over_sites.fixed for each in result.comparisons if each.over_sites is not None]
    return [each.lower > 0 or each.upper < 0 for each in effects]


if __name__ == "__main__":
    main()
